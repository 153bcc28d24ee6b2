#include "box/socket_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/units.h"
#include "sys/files.h"

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

const rtattr* find(int type, const rtattr* attribute, unsigned size) {
  for (; RTA_OK(attribute, size); attribute = RTA_NEXT(attribute, size))
    if (attribute->rta_type == type) return attribute;
  return nullptr;
}

// As many bytes as the attribute has, at most those of T; zeros otherwise.
template <class T>
T value_of(const rtattr* attribute) {
  T value{};
  if (attribute != nullptr)
    std::memcpy(&value, RTA_DATA(attribute), std::min<std::size_t>(RTA_PAYLOAD(attribute), sizeof value));
  return value;
}

// Sent and not yet read, and what waits to be sent.
std::uint64_t buffers(const rtattr* attribute) {
  const auto values = value_of<std::array<std::uint32_t, SK_MEMINFO_VARS>>(attribute);
  return std::uint64_t{values[SK_MEMINFO_RMEM_ALLOC]} + values[SK_MEMINFO_WMEM_ALLOC] + values[SK_MEMINFO_WMEM_QUEUED] +
         values[SK_MEMINFO_OPTMEM];
}

enum class Told { all, part, nothing };

// Calls `each` with the head of every socket that the kernel tells of, and what is behind it. Nothing: it does not know
// such sockets.
template <class Head, class Each>
Told read_replies(int diag, Each each) {
  alignas(nlmsghdr) std::array<char, 32768> buffer;
  for (int reply = 0; reply < kMaxReplies; ++reply) {
    const ssize_t got = ::recv(diag, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got <= 0) return Told::part;
    auto left = static_cast<unsigned>(got);
    for (const nlmsghdr* header = reinterpret_cast<const nlmsghdr*>(buffer.data()); NLMSG_OK(header, left);
         header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_ERROR) return Told::nothing;
      if (header->nlmsg_type == NLMSG_DONE) return Told::all;
      if (header->nlmsg_len < NLMSG_LENGTH(sizeof(Head))) continue;
      const char* start = static_cast<const char*>(NLMSG_DATA(header));
      auto size = static_cast<unsigned>(header->nlmsg_len - NLMSG_LENGTH(NLMSG_ALIGN(sizeof(Head))));
      const auto* attribute = reinterpret_cast<const rtattr*>(start + NLMSG_ALIGN(sizeof(Head)));
      each(*reinterpret_cast<const Head*>(start), attribute, size);
    }
  }
  return Told::part;
}

// What the kernel tells of the sockets of one kind.
struct Listed {
  std::uint64_t sockets = 0, memory = 0;
  bool whole = false;
};

// The last number of a setting: "4096 131072 6291456" is least, usual, most.
std::uint64_t most(const char* path, std::uint64_t otherwise) {
  const auto text = sys::try_read_file(path, 256);
  if (!text) return otherwise;
  const std::size_t start = text->find_last_of(" \t", text->find_last_not_of(" \t\n"));
  return std::strtoull(text->c_str() + (start == std::string::npos ? 0 : start + 1), nullptr, 10);
}

// A Unix socket's queue counts with its sender. If that is closed, nobody tells how much it is: the kernel only says
// how many bytes wait, each of which may be a message of its own, and nothing of messages without any. A guest without
// a cgroup cannot raise what a socket may send: that is wmem_default, and one message more.
std::optional<Listed> unix_sockets(int diag) {
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = ~0U;
  request.udiag_show = UDIAG_SHOW_MEMINFO | UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN;
  if (!ask(diag, request)) return Listed{};
  Listed listed;
  std::vector<UnixQueue> queues;
  std::vector<std::uint32_t> living;
  const auto take = [&](const unix_diag_msg& socket, const rtattr* start, unsigned size) {
    ++listed.sockets;
    listed.memory += buffers(find(UNIX_DIAG_MEMINFO, start, size));
    if (socket.udiag_ino != 0) living.push_back(socket.udiag_ino);
    if (socket.udiag_state == TCP_LISTEN) return;  // its queue is of connections, which are listed too
    queues.push_back({value_of<std::uint32_t>(find(UNIX_DIAG_PEER, start, size)),
                      value_of<unix_diag_rqlen>(find(UNIX_DIAG_RQLEN, start, size)).udiag_rqueue,
                      socket.udiag_type == SOCK_SEQPACKET && socket.udiag_state == TCP_ESTABLISHED});
  };
  const Told told = read_replies<unix_diag_msg>(diag, take);
  if (told == Told::nothing) return std::nullopt;
  listed.whole = told == Told::all;
  listed.memory += left_by_closed(queues, std::move(living), 2 * most("/proc/sys/net/core/wmem_default", 212992));
  return listed;
}

std::optional<Listed> inet_sockets(int diag, int family, int protocol) {
  inet_diag_req_v2 request{};
  request.sdiag_family = static_cast<std::uint8_t>(family);
  request.sdiag_protocol = static_cast<std::uint8_t>(protocol);
  request.idiag_ext = 1U << (INET_DIAG_SKMEMINFO - 1);
  request.idiag_states = ~0U;
  if (!ask(diag, request)) return Listed{};
  Listed listed;
  const auto take = [&](const inet_diag_msg&, const rtattr* start, unsigned size) {
    ++listed.sockets;
    listed.memory += buffers(find(INET_DIAG_SKMEMINFO, start, size));
  };
  const Told told = read_replies<inet_diag_msg>(diag, take);
  if (told == Told::nothing) return std::nullopt;
  listed.whole = told == Told::all;
  return listed;
}

enum Kind : std::size_t { local, tcp, udp, tcp6, udp6 };
constexpr std::array kSocketKinds{local, tcp, udp, tcp6, udp6};

// What the kernel has for a socket beside its buffers, its inode and names included, rounded up from what slabinfo
// shows on 6.18: 2.4 KiB and 1.2 KiB of inode, dentry and file for TCP; a connection that nobody has accepted has a
// request and a bucket for its port instead.
constexpr std::array<std::uint64_t, 5> kItself{2_KiB, 4_KiB, 3_KiB, 4_KiB, 3_KiB};
constexpr std::uint64_t kTimeWait = 512;  // what is left of a closed connection, for a minute

// As many sockets as there are, each with full buffers; a program may double what wmem_max and rmem_max say. Where the
// rest is charged, it is what waits to be read from connections that nobody has accepted: as much as the listener was
// given, since such a buffer grows only while somebody reads.
std::uint64_t at_most(Kind kind, std::uint64_t count, bool charged) {
  const std::uint64_t sent = 2 * most("/proc/sys/net/core/wmem_max", 212992);
  const std::uint64_t received = 2 * most("/proc/sys/net/core/rmem_max", 212992);
  if (charged) return kind == tcp || kind == tcp6 ? count * received : 0;
  if (kind == local) return count * sent;  // a Unix socket's queue counts with the sender
  if (kind == udp || kind == udp6) return count * (sent + received);
  return count * (std::max(most("/proc/sys/net/ipv4/tcp_wmem", 4_MiB), sent) +
                  std::max(most("/proc/sys/net/ipv4/tcp_rmem", 6_MiB), received));
}

// Of any process but init, which joins the network namespace later than the guest, who makes it.
Fd open_of_guest(int proc, const char* path) {
  const int listing = ::openat(proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = listing >= 0 ? ::fdopendir(listing) : nullptr;
  Fd found;
  while (const dirent* entry = entries != nullptr && !found ? ::readdir(entries) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name[0] < '1' || name[0] > '9' || name == "1") continue;
    found = Fd{::openat(proc, fmt::format("{}/{}", name, path).c_str(), O_RDONLY | O_CLOEXEC)};
  }
  if (entries != nullptr) ::closedir(entries);
  return found;
}

std::string read_again(int fd) {
  std::array<char, 4096> text;
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  return {text.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

}  // namespace

std::uint64_t sockstat_count(std::string_view table, std::string_view line, std::string_view word) {
  for (std::string_view row : sys::split(table, '\n')) {
    if (!row.starts_with(line) || row.substr(line.size(), 1) != ":") continue;
    const auto words = sys::split(row.substr(line.size() + 1), ' ');
    for (std::size_t i = 0; i + 1 < words.size(); ++i)
      if (words[i] == word) return std::strtoull(std::string{words[i + 1]}.c_str(), nullptr, 10);
  }
  return 0;
}

std::uint64_t left_by_closed(const std::vector<UnixQueue>& queues, std::vector<std::uint32_t> living,
                             std::uint64_t most) {
  constexpr std::uint64_t kMessage = 1_KiB;  // 768 bytes were seen on 6.18
  std::ranges::sort(living);
  std::uint64_t sum = 0;
  for (const UnixQueue& queue : queues)
    if (!std::ranges::binary_search(living, queue.peer))
      sum += queue.may_be_empty_messages ? most : std::min(queue.bytes * kMessage, most);
  return sum;
}

std::uint64_t of_unlisted(std::uint64_t all, std::uint64_t listed, std::uint64_t each) {
  constexpr std::uint64_t kSpared = 32;
  return all > listed + kSpared ? (all - listed - kSpared) * each : 0;
}

SocketCounts socket_counts(std::string_view table, std::string_view table6) {
  SocketCounts counts;
  counts.of[tcp] = sockstat_count(table, "TCP", "inuse");
  counts.of[udp] = sockstat_count(table, "UDP", "inuse");
  counts.of[tcp6] = sockstat_count(table6, "TCP6", "inuse");
  counts.of[udp6] = sockstat_count(table6, "UDP6", "inuse");
  // The whole less those that have a line of their own.
  const std::uint64_t all = sockstat_count(table, "sockets", "used");
  const std::uint64_t others = counts.of[tcp] + counts.of[udp] + counts.of[tcp6] + counts.of[udp6];
  counts.of[local] = all > others ? all - others : 0;
  counts.closed = sockstat_count(table, "TCP", "tw");
  return counts;
}

std::uint64_t SocketCounts::memory() const {
  std::uint64_t sum = closed * kTimeWait;
  for (const Kind kind : kSocketKinds) sum += of[kind] * kItself[kind];
  return sum;
}

// On the host's network the counts are the whole host's.
std::optional<SocketCounts> SocketMeter::count(int proc) {
  if (!own_network_) return std::nullopt;
  if (!table_) table_ = open_of_guest(proc, "net/sockstat");
  if (!table6_) table6_ = open_of_guest(proc, "net/sockstat6");
  const std::string table = read_again(table_.get());
  if (table.empty()) return std::nullopt;
  return socket_counts(table, read_again(table6_.get()));
}

std::uint64_t SocketMeter::measure(int proc, std::uint64_t limit) {
  if (!diag_) return 0;
  const auto counts = count(proc);
  std::uint64_t sum = counts ? counts->memory() : 0;
  for (const Kind kind : kSocketKinds) {
    if (sum > limit) break;
    if (counts && counts->of[kind] == 0) continue;
    std::optional<Listed> listed;
    if (!unknown_[kind])
      listed = kind == local ? unix_sockets(diag_.get())
                             : inet_sockets(diag_.get(), kind == tcp6 || kind == udp6 ? AF_INET6 : AF_INET,
                                            kind == tcp || kind == tcp6 ? IPPROTO_TCP : IPPROTO_UDP);
    unknown_[kind] = !listed;
    sum += listed ? listed->memory : counts ? at_most(kind, counts->of[kind], charged_) : 0;
    // Counted once more, since sockets come and go: those that were there before and after the list, and not in it. Of
    // a list that breaks off nothing can be said.
    if (kind != local || !listed || !listed->whole || !counts || charged_) continue;
    if (const auto after = count(proc))
      sum += of_unlisted(std::min(counts->of[local], after->of[local]), listed->sockets, most_received_);
  }
  return sum;
}

}  // namespace pctx
