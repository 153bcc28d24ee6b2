// A small process that outlives the supervisor: when that one is killed (kill -9 included), it kills what is left of the
// box and removes its cgroups. The box's processes need it no more than its mounts do (init ends with the supervisor,
// and the namespaces with init); cgroups are the one thing that stays.
#pragma once

#include <sys/types.h>

#include "base/fd.h"
#include "box/cgroup.h"

namespace pctx {

class Janitor {
 public:
  Janitor() = default;
  // Forks. The child keeps the cgroup's descriptors, and with them its lock, and nothing else.
  static Janitor start(BoxCgroup& cgroup);
  Janitor(Janitor&& other) noexcept;
  Janitor& operator=(Janitor&& other) noexcept;
  ~Janitor() { dismiss(); }
  // The supervisor has cleaned up by itself.
  void dismiss() noexcept;

 private:
  pid_t pid_ = -1;
  Fd lifeline_;  // its end is the end of the supervisor
};

}  // namespace pctx
