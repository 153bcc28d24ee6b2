// The cgroup of one box: made before it, read while it lives, removed after it. Everything is by directory descriptor;
// the box's directory is locked for as long as somebody is responsible for it, which is how a later run tells a
// leftover from a live one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "plan/plan.h"

namespace pctx {

struct CgroupUsage {
  std::optional<std::uint64_t> peak_memory;
  std::optional<std::uint64_t> cpu_microseconds;
  std::uint64_t oom_kills = 0;
};

class BoxCgroup {
 public:
  // Makes the directories, without limits. `name` is unique on this host.
  static Result<BoxCgroup> reserve(const CgroupHost& host, bool cpu_accounting, const std::string& name);
  // Writes the limits; before anything of a guest runs.
  Result<void> bind(const Plan& plan) const;
  // Both at once.
  static Result<BoxCgroup> make(const Plan& plan, const std::string& name);

  BoxCgroup() = default;
  BoxCgroup(BoxCgroup&&) = default;
  BoxCgroup& operator=(BoxCgroup&&) = default;
  ~BoxCgroup();  // kills and removes, if remove() was not called

  bool active() const { return !parts_.empty(); }
  // For the janitor, which must not allocate; valid as long as the cgroup is.
  struct Handle {
    int parent, directory;
    const char* name;
  };
  std::vector<Handle> handles() const;
  int directory() const;                       // v2: for CLONE_INTO_CGROUP; else -1
  Result<std::vector<Fd>> open_tasks() const;  // v1: what the box joins by
  // In place of what the plan says.
  Result<void> limit_processes(std::uint64_t most) const;
  // v1: readable when the box runs out of memory (v2 kills the whole group by itself).
  Fd watch_memory() const;
  CgroupUsage usage() const;
  bool counts_cpu() const;
  std::optional<std::uint64_t> processes() const;  // at this moment, each thread for one
  std::uint64_t refused_processes() const;         // for want of room, since the box was made
  std::optional<std::uint64_t> memory() const;     // at this moment
  void kill() const;
  // Removes what no process is in, without waiting.
  void remove_empty();
  // Waits until the kernel has let go of the last process, then removes. Bounded.
  Result<void> remove();

 private:
  struct Part {
    std::string where, name, controller;
    Fd parent, directory;
  };
  const Part* part(std::string_view controller) const;
  CgroupVersion version_ = CgroupVersion::none;
  std::vector<Part> parts_;
};

// For those who make many boxes and have company: steps into a leaf of the delegated scope while we are alone in it, so
// that everybody who looks later finds it settled.
void settle_in_scope(const CgroupHost& host);

// Removes what runs that were killed together with their janitors have left, under a lock; live boxes are left alone.
void sweep_cgroups(const CgroupHost& host);

inline constexpr std::string_view kCgroupPrefix = "pctx-box-";
std::string box_cgroup_name();
bool accounts_cpu(const Policy& policy);

}  // namespace pctx
