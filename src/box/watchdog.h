// Measures a box from outside, by its own /proc and what the Lookout tells: for limits that no cgroup binds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/units.h"
#include "box/cgroup.h"
#include "box/outcome.h"
#include "box/proc_tree.h"
#include "plan/plan.h"

namespace pctx {

struct TreeUsage {
  // Anonymous and shared memory of every process, page tables and mappings, scratch space, sockets.
  std::uint64_t memory = 0;
  std::uint64_t processes = 0;
  Millis cpu{0};
};

// A look by the Lookout.
struct Look {
  std::uint64_t in_kernel = 0;  // memory that belongs to no process
  std::uint64_t parked = 0;     // shared memory whether its pages are mapped or not
  bool exact = false;           // whether the next is known: what the processes have together, each page once
  Resident resident;
};

class TreeMeter {
 public:
  // The box's /proc and a directory of its scratch space.
  void watch_tree(Fd proc, Fd scratch) {
    proc_ = std::move(proc);
    watch_store(std::move(scratch));
  }
  // A file system of its own that is in memory.
  void watch_store(Fd directory) { stores_.push_back(std::move(directory)); }
  // What the Lookout has seen.
  void note(const Look& look);
  // Shared anonymous memory that the box may have by now, mapped or not.
  void count_shared(std::uint64_t granted) { shared_ = granted; }

  explicit operator bool() const { return static_cast<bool>(proc_); }
  int proc() const { return proc_.get(); }
  // From the outline that /proc gives of each process, which takes the same time however much they have. Memory that
  // several share is several times in it: above the limit it is the Lookout that tells, unless one has too much alone.
  TreeUsage measure(std::uint64_t memory_limit);
  // Whether only an exact look can tell if the last measure() was above its limit.
  bool doubtful() const { return doubtful_; }
  // What a process has by now it shares with somebody outside the box, and no measure() alone can tell how much.
  void inherit() { inherited_ = largest_; }
  std::uint64_t last_memory() const { return last_memory_; }
  std::size_t processes() const;  // beside init, at this moment
  // Nothing before the first look.
  std::optional<TreeUsage> highest() const { return highest_; }
  // After the last process has ended: what it stored stays for a moment longer, and is known exactly.
  void measure_rest();

 private:
  std::uint64_t stored() const;
  std::uint64_t total(const Resident& processes, std::uint64_t stored, std::uint64_t granted) const;
  void judge(std::uint64_t memory_limit, std::uint64_t stored, std::uint64_t sure, TreeUsage& usage);

  Fd proc_;
  std::vector<Fd> stores_;
  std::uint64_t last_memory_ = 0;
  std::optional<TreeUsage> highest_;
  std::uint64_t shared_ = 0;
  std::uint64_t parked_ = 0, in_kernel_ = 0;  // as of the Lookout's last look
  std::optional<Resident> exact_;             // of a look that nobody has judged yet
  std::uint64_t judged_ = 0;
  // Since then. What was in a process may be in a file by now: it must not count for both.
  std::uint64_t least_stored_ = UINT64_MAX, least_shared_ = UINT64_MAX;
  std::uint64_t largest_ = 0, inherited_ = 0;
  bool doubtful_ = false;
  int blind_ = 0;
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
