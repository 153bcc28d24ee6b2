// Measures a box from outside by its own /proc and sockets: for limits that no cgroup binds.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/units.h"
#include "box/cgroup.h"
#include "box/outcome.h"
#include "box/socket_memory.h"
#include "plan/plan.h"

namespace pctx {

struct TreeUsage {
  // Anonymous and shared memory of every process, page tables and mappings, scratch space, sockets.
  std::uint64_t memory = 0;
  std::uint64_t processes = 0;
  Millis cpu{0};
};

class TreeMeter {
 public:
  // The box's /proc and a directory of its tmpfs.
  void watch_tree(Fd proc, Fd scratch) {
    proc_ = std::move(proc);
    scratch_ = std::move(scratch);
  }
  // A NETLINK_SOCK_DIAG socket of its network namespace.
  void watch_sockets(Fd diag, bool own_network) { sockets_ = SocketMeter{std::move(diag), own_network}; }

  // Shared anonymous memory that the box may have by now, mapped or not.
  void count_shared(std::uint64_t granted) { shared_ = granted; }

  explicit operator bool() const { return static_cast<bool>(proc_); }
  int proc() const { return proc_.get(); }
  // `limit` is where counting shared pages twice starts to matter: above it the exact, dearer figure is taken. Also for
  // a new highest, but then not so often that it costs.
  TreeUsage measure(std::uint64_t memory_limit);
  std::uint64_t last_memory() const { return last_memory_; }
  std::size_t processes() const;  // beside init, at this moment
  // Nothing before the first look.
  std::optional<TreeUsage> highest() const { return highest_; }
  // After the last process has ended: what it stored stays for a moment longer, and is known exactly.
  void measure_rest();

 private:
  std::uint64_t stored() const;

  Fd proc_, scratch_;
  SocketMeter sockets_;
  unsigned looks_ = 0;
  std::uint64_t last_memory_ = 0;
  std::optional<TreeUsage> highest_;
  std::chrono::steady_clock::time_point next_exact_{};
  std::uint64_t shared_ = 0;
  std::uint64_t parked_ = 0, in_kernel_ = 0;           // as of the last closer look
  std::map<std::string, std::uint64_t> living_ticks_;  // by pid and start time
  std::uint64_t dead_ticks_ = 0;
};

// Of one process of ours, as the host's /proc shows it; 0 if it is gone, the most there is if it hides it.
std::uint64_t resident_memory(pid_t pid);
Millis waited_for(pid_t pid);  // CPU time of the children that it has waited for, in steps of some milliseconds

// Looks once, and writes into the verdict what is over its limit of those that no cgroup binds; true if something is.
bool over_limits(const Plan& plan, TreeMeter& meter, const BoxCgroup& cgroup, Verdict& verdict);

inline constexpr Millis kWatchInterval{10};

}  // namespace pctx
