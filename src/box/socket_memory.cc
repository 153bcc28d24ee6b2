#include "box/socket_memory.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

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

// Sent and not yet read, and what waits to be sent; a Unix socket's queue counts with the sender.
std::uint64_t buffers(const rtattr* attribute) {
  std::array<std::uint32_t, SK_MEMINFO_VARS> values{};
  std::memcpy(values.data(), RTA_DATA(attribute), std::min<std::size_t>(RTA_PAYLOAD(attribute), sizeof values));
  return std::uint64_t{values[SK_MEMINFO_RMEM_ALLOC]} + values[SK_MEMINFO_WMEM_ALLOC] + values[SK_MEMINFO_WMEM_QUEUED] +
         values[SK_MEMINFO_OPTMEM];
}

// Nothing if the kernel does not know such sockets.
std::optional<std::uint64_t> read_replies(int diag, std::size_t fixed, int wanted) {
  std::uint64_t sum = 0;
  alignas(nlmsghdr) std::array<char, 32768> buffer;
  for (int reply = 0; reply < kMaxReplies; ++reply) {
    const ssize_t got = ::recv(diag, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got <= 0) return sum;
    auto left = static_cast<unsigned>(got);
    for (const nlmsghdr* header = reinterpret_cast<const nlmsghdr*>(buffer.data()); NLMSG_OK(header, left);
         header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_ERROR) return std::nullopt;
      if (header->nlmsg_type == NLMSG_DONE) return sum;
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

std::optional<std::uint64_t> unix_memory(int diag) {
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = ~0U;
  request.udiag_show = UDIAG_SHOW_MEMINFO;
  if (!ask(diag, request)) return 0;
  return read_replies(diag, sizeof(unix_diag_msg), UNIX_DIAG_MEMINFO);
}

std::optional<std::uint64_t> inet_memory(int diag, int family, int protocol) {
  inet_diag_req_v2 request{};
  request.sdiag_family = static_cast<std::uint8_t>(family);
  request.sdiag_protocol = static_cast<std::uint8_t>(protocol);
  request.idiag_ext = 1U << (INET_DIAG_SKMEMINFO - 1);
  request.idiag_states = ~0U;
  if (!ask(diag, request)) return 0;
  return read_replies(diag, sizeof(inet_diag_msg), INET_DIAG_SKMEMINFO);
}

// The last number of a setting: "4096 131072 6291456" is least, usual, most.
std::uint64_t most(const char* path, std::uint64_t otherwise) {
  const auto text = sys::try_read_file(path, 256);
  if (!text) return otherwise;
  const std::size_t start = text->find_last_of(" \t", text->find_last_not_of(" \t\n"));
  return std::strtoull(text->c_str() + (start == std::string::npos ? 0 : start + 1), nullptr, 10);
}

enum Kind : std::size_t { local, tcp, udp, tcp6, udp6 };

// As many sockets as there are, each with full buffers; a program may double what wmem_max and rmem_max say.
std::uint64_t at_most(Kind kind, std::string_view table, std::string_view table6) {
  const auto count = [&](std::string_view which, std::string_view line) {
    return sockstat_count(which, line, "inuse");
  };
  const std::uint64_t sent = 2 * most("/proc/sys/net/core/wmem_max", 212992);
  const std::uint64_t received = 2 * most("/proc/sys/net/core/rmem_max", 212992);
  const std::uint64_t stream = std::max(most("/proc/sys/net/ipv4/tcp_wmem", 4_MiB), sent) +
                               std::max(most("/proc/sys/net/ipv4/tcp_rmem", 6_MiB), received);
  switch (kind) {
    case tcp:
      return count(table, "TCP") * stream;
    case udp:
      return count(table, "UDP") * (sent + received);
    case tcp6:
      return count(table6, "TCP6") * stream;
    case udp6:
      return count(table6, "UDP6") * (sent + received);
    case local:
      break;
  }
  // The whole less those that have a line of their own; a Unix socket's queue counts with the sender.
  const std::uint64_t all = sockstat_count(table, "sockets", "used");
  const std::uint64_t others =
      count(table, "TCP") + count(table, "UDP") + count(table6, "TCP6") + count(table6, "UDP6");
  return (all > others ? all - others : 0) * sent;
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

std::uint64_t SocketMeter::measure(int proc, const std::string& guest) {
  if (!diag_) return 0;
  std::uint64_t sum = 0;
  const auto listed = [&](Kind kind) -> std::optional<std::uint64_t> {
    if (kind == local) return unix_memory(diag_.get());
    return inet_memory(diag_.get(), kind == tcp6 || kind == udp6 ? AF_INET6 : AF_INET,
                       kind == tcp || kind == tcp6 ? IPPROTO_TCP : IPPROTO_UDP);
  };
  bool any_unknown = false;
  for (const Kind kind : {local, tcp, udp, tcp6, udp6}) {
    const auto held = unknown_[kind] ? std::nullopt : listed(kind);
    unknown_[kind] = !held;
    any_unknown |= !held;
    sum += held.value_or(0);
  }
  // On the host's network the counts are the whole host's.
  if (!any_unknown || !own_network_) return sum;
  const std::string table = sys::try_read_file(guest + "/net/sockstat", 4096, proc).value_or("");
  const std::string table6 = sys::try_read_file(guest + "/net/sockstat6", 4096, proc).value_or("");
  for (const Kind kind : {local, tcp, udp, tcp6, udp6})
    if (unknown_[kind]) sum += at_most(kind, table, table6);
  return sum;
}

}  // namespace pctx
