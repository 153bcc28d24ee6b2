// A small process that outlives the supervisor: when that one is killed (kill -9 included), it kills what is left of
// the box and removes its cgroups. The box's processes need it no more than its mounts do (init ends with the
// supervisor, and the namespaces with init); cgroups are the one thing that stays.
#pragma once

#include <sys/types.h>

#include <memory>

#include "base/fd.h"
#include "box/cgroup.h"

namespace pctx {

class Janitor {
 public:
  Janitor();
  // Shares our memory, so that it costs a tenth of a fork; has its own descriptors: the cgroup's, and with them its
  // lock, and nothing else.
  static Janitor start(const BoxCgroup& cgroup);
  Janitor(Janitor&& other) noexcept;
  Janitor& operator=(Janitor&& other) noexcept;
  ~Janitor();
  // The supervisor cleans up by itself. `dismiss` also waits for its end.
  void release() noexcept;
  void dismiss() noexcept;

 private:
  struct Task;
  pid_t pid_ = -1;
  Fd lifeline_;  // its end is the end of the supervisor
  std::unique_ptr<Task> task_;
};

}  // namespace pctx
