// What the sockets of a box hold in their buffers: memory that belongs to no process and that only a cgroup would
// count.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.h"

namespace pctx {

class SocketMeter {
 public:
  SocketMeter() = default;
  // A NETLINK_SOCK_DIAG socket that was made in the guest's network namespace; whether that is the box's own.
  SocketMeter(Fd diag, bool own_network) : diag_(std::move(diag)), own_network_(own_network) {}

  // What each socket tells; where the kernel cannot list a kind of them (it lacks a module such as unix_diag), the most
  // that as many could hold. `guest` is a process of the guest's in the box's /proc, `proc`.
  std::uint64_t measure(int proc, const std::string& guest);

 private:
  static constexpr std::size_t kKinds = 5;

  Fd diag_;
  bool own_network_ = false;
  // Asked once only: the kernel starts modprobe for each question about a kind that it does not know.
  std::array<bool, kKinds> unknown_{};
};

// "UDP: inuse 5 mem 2" has 5 for "UDP", "inuse"; 0 where there is no such line or word. Of /proc/net/sockstat.
std::uint64_t sockstat_count(std::string_view table, std::string_view line, std::string_view word);

}  // namespace pctx
