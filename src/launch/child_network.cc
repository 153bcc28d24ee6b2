#include "launch/child_network.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "launch/child_plan.h"
#include "launch/netlink.h"

namespace pctx {
namespace {

constexpr std::uint16_t kDnsPort = 53;
// What the relay has not accepted yet waits here; more than that is refused, as at any busy server.
constexpr int kBacklog = 256;
constexpr std::size_t kMostEnds = 64;

// True when the kernel took all of them; errno is that of the first it did not.
bool configure(int socket, const NetlinkBatch& batch) noexcept {
  if (batch.last == 0) return true;
  bool done = ::send(socket, batch.messages, batch.size, 0) == static_cast<ssize_t>(batch.size);
  int code = done ? 0 : errno;
  alignas(nlmsghdr) char answer[1024];
  while (done) {
    const ssize_t got = ::recv(socket, answer, sizeof answer, 0);
    if (got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(nlmsgerr)))) {
      code = got < 0 ? errno : EPROTO;
      break;
    }
    nlmsghdr header;
    nlmsgerr error;
    std::memcpy(&header, answer, sizeof header);
    std::memcpy(&error, answer + NLMSG_HDRLEN, sizeof error);
    if (header.nlmsg_type != NLMSG_ERROR) continue;
    code = -error.error;
    if (code != 0 || header.nlmsg_seq == batch.last) break;
  }
  errno = code;
  return code == 0;
}

// For both families where the kernel has both.
int open_port(int type, std::uint16_t port) noexcept {
  const int one = 1, zero = 0;
  int fd = ::socket(AF_INET6, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  bool bound = false;
  if (fd >= 0) {
    sockaddr_in6 any;
    std::memset(&any, 0, sizeof any);
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(port);
    bound = ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) == 0 &&
            ::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0;
  } else if (errno == EAFNOSUPPORT) {
    fd = ::socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in any;
    std::memset(&any, 0, sizeof any);
    any.sin_family = AF_INET;
    any.sin_port = htons(port);
    bound = fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0;
  }
  if (!bound) return -1;
  // Answers come from the address that was asked, which over IPv6 is none of an interface's.
  if (type == SOCK_DGRAM) (void)::setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &one, sizeof one);
  if (type == SOCK_STREAM) {
    // Inherited by what is accepted: small pieces in either direction are not held back.
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (::listen(fd, kBacklog) != 0) return -1;
  }
  return fd;
}

// Sees attempts to reach what is not local here: see Plan's network.
int open_watcher(const sock_fprog& watched) noexcept {
  // Without a protocol nothing arrives before the filter is set.
  const int fd = ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  sockaddr_ll place;
  std::memset(&place, 0, sizeof place);
  place.sll_family = AF_PACKET;
  place.sll_protocol = htons(ETH_P_ALL);
  place.sll_ifindex = kLoopback;
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &watched, sizeof watched) == 0 &&
      ::bind(fd, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0)
    return fd;
  ::close(fd);
  return -1;
}

int open_raw(int family) noexcept { return ::socket(family, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW); }

}  // namespace

void make_network(const ChildPlan& plan) noexcept {
  const ChildNetwork& network = *plan.network;
  const int routes = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (routes < 0 || !configure(routes, network.local4)) fail(plan, Step::network);
  // A host may have IPv6 switched off; then nothing in the box reaches anything by it, which is what must hold.
  (void)configure(routes, network.local6);
  int ends[kMostEnds];
  std::size_t count = 0;
  const auto add = [&](int fd) {
    if (fd < 0) fail(plan, Step::network, count + 1);
    ends[count++] = fd;
  };
  add(open_port(SOCK_DGRAM, kDnsPort));
  add(open_port(SOCK_STREAM, kDnsPort));
  std::uint8_t has = 0;
  const int watchers[] = {open_watcher(network.watched), open_raw(AF_INET), open_raw(AF_INET6)};
  for (std::size_t i = 0; i < std::size(watchers); ++i)
    if (watchers[i] >= 0) {
      has = static_cast<std::uint8_t>(has | (kHasPacket << i));
      add(watchers[i]);
    }
  // Without a watcher that answers, whoever took this way would wait; without it the kernel says at once that there is
  // none.
  constexpr std::uint8_t kBoth = kHasPacket | kHasRaw4;
  if ((has & kBoth) == kBoth && !configure(routes, network.watched_route)) fail(plan, Step::network);
  ::close(routes);
  for (std::size_t i = 0; i < network.port_count; ++i) add(open_port(SOCK_STREAM, network.ports[i]));
  for (std::size_t first = 0; first < count; first += kMaxFrameFds) {
    const StatusFrame frame{Message::network, Step::network, has, static_cast<std::uint16_t>(first),
                            static_cast<std::int32_t>(count)};
    if (!send_frame(plan.status, frame, ends + first, std::min(kMaxFrameFds, count - first)))
      fail(plan, Step::network, kMostEnds);
  }
  while (count > 0) ::close(ends[--count]);
}

}  // namespace pctx
