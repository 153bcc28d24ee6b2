#include "box/socket_memory.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

namespace pctx {
namespace {

constexpr int kMaxReplies = 4096;  // a bound on what one look may cost us

template <class Request>
bool ask(int diag, const Request& request) {
  struct {
    nlmsghdr header;
    Request body;
  } message{};
  message.header.nlmsg_len = sizeof message;
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  message.body = request;
  return ::send(diag, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof message;
}

// Sent and not yet read, and what waits to be sent; a Unix socket's queue counts with the sender.
std::uint64_t buffers(const rtattr* attribute) {
  std::array<std::uint32_t, SK_MEMINFO_VARS> values{};
  std::memcpy(values.data(), RTA_DATA(attribute), std::min<std::size_t>(RTA_PAYLOAD(attribute), sizeof values));
  return std::uint64_t{values[SK_MEMINFO_RMEM_ALLOC]} + values[SK_MEMINFO_WMEM_ALLOC] + values[SK_MEMINFO_WMEM_QUEUED] +
         values[SK_MEMINFO_OPTMEM];
}

std::uint64_t read_replies(int diag, std::size_t fixed, int wanted) {
  std::uint64_t sum = 0;
  alignas(nlmsghdr) std::array<char, 32768> buffer;
  for (int reply = 0; reply < kMaxReplies; ++reply) {
    const ssize_t got = ::recv(diag, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got <= 0) return sum;
    auto left = static_cast<unsigned>(got);
    for (const nlmsghdr* header = reinterpret_cast<const nlmsghdr*>(buffer.data()); NLMSG_OK(header, left);
         header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR) return sum;
      if (header->nlmsg_len < NLMSG_LENGTH(fixed)) continue;
      const char* start = static_cast<const char*>(NLMSG_DATA(header)) + NLMSG_ALIGN(fixed);
      auto size = static_cast<unsigned>(header->nlmsg_len - NLMSG_LENGTH(NLMSG_ALIGN(fixed)));
      for (const rtattr* attribute = reinterpret_cast<const rtattr*>(start); RTA_OK(attribute, size);
           attribute = RTA_NEXT(attribute, size))
        if (attribute->rta_type == wanted) sum += buffers(attribute);
    }
  }
  return sum;
}

}  // namespace

std::uint64_t socket_memory(int diag) {
  if (diag < 0) return 0;
  std::uint64_t sum = 0;
  unix_diag_req local{};
  local.sdiag_family = AF_UNIX;
  local.udiag_states = ~0U;
  local.udiag_show = UDIAG_SHOW_MEMINFO;
  if (ask(diag, local)) sum += read_replies(diag, sizeof(unix_diag_msg), UNIX_DIAG_MEMINFO);
  for (const int family : {AF_INET, AF_INET6})
    for (const int protocol : {IPPROTO_TCP, IPPROTO_UDP}) {
      inet_diag_req_v2 inet{};
      inet.sdiag_family = static_cast<std::uint8_t>(family);
      inet.sdiag_protocol = static_cast<std::uint8_t>(protocol);
      inet.idiag_ext = 1U << (INET_DIAG_SKMEMINFO - 1);
      inet.idiag_states = ~0U;
      if (ask(diag, inet)) sum += read_replies(diag, sizeof(inet_diag_msg), INET_DIAG_SKMEMINFO);
    }
  return sum;
}

}  // namespace pctx
