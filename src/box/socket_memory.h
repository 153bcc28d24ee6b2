// What the sockets of a box hold, their buffers and themselves: memory that belongs to no process, that cgroup v1 does
// not count and v2 not for connections that nobody has accepted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace pctx {

// Of one network namespace: unix, TCP, UDP, and the two over IPv6. Whether accepted or not, and orphans too.
struct SocketCounts {
  std::array<std::uint64_t, 5> of{};
  std::uint64_t closed = 0;  // connections in TIME_WAIT

  std::uint64_t memory() const;  // without what is in their buffers
};

class SocketMeter {
 public:
  SocketMeter() = default;
  // A NETLINK_SOCK_DIAG socket that was made in the guest's network namespace; whether that is the box's own; whether a
  // cgroup of v2 charges for the buffers of what was accepted; Plan::most_received().
  SocketMeter(Fd diag, bool own_network, bool charged, std::uint64_t most_received)
      : diag_(std::move(diag)), most_received_(most_received), own_network_(own_network), charged_(charged) {}

  // What each socket tells; where the kernel cannot list a kind of them (it lacks a module such as unix_diag), the most
  // that as many could hold without being charged. `proc` is the box's /proc. Above `limit` nothing more is looked at.
  std::uint64_t measure(int proc, std::uint64_t limit);

 private:
  std::optional<SocketCounts> count(int proc);

  Fd diag_;
  Fd table_, table6_;  // /proc/net/sockstat of the box
  std::uint64_t most_received_ = 0;
  bool own_network_ = false, charged_ = false;
  // Asked once only: the kernel starts modprobe for each question about a kind that it does not know.
  std::array<bool, 5> unknown_{};
};

// What waits in a Unix socket, and the inode of the socket that may have sent it, 0 for none.
struct UnixQueue {
  std::uint32_t peer = 0;
  std::uint64_t bytes = 0;
  bool may_be_empty_messages = false;
};
// Those whose peer is not among the living hold what a closed socket has sent, `most` each at the most.
std::uint64_t left_by_closed(const std::vector<UnixQueue>& queues, std::vector<std::uint32_t> living,
                             std::uint64_t most);

// What those of `all` may hold that the kernel counts and does not list: a connection that was reset, a UDP socket that
// has given up its port, with all that they have received. Sockets that are still to be used are not listed either,
// which is why some are free.
std::uint64_t of_unlisted(std::uint64_t all, std::uint64_t listed, std::uint64_t each);

SocketCounts socket_counts(std::string_view sockstat, std::string_view sockstat6);

// "UDP: inuse 5 mem 2" has 5 for "UDP", "inuse"; 0 where there is no such line or word. Of /proc/net/sockstat.
std::uint64_t sockstat_count(std::string_view table, std::string_view line, std::string_view word);

}  // namespace pctx
