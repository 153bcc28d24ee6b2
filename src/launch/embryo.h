// A box that is begun before it is planned: its first processes make the namespaces, which take the kernel longest,
// while we look at the host and plan. They read what to do from memory that they share with us; until that is written
// they know nothing but the namespaces they are to have, and they end with us.
#pragma once

#include <array>

#include "launch/shared_memory.h"
#include "launch/spawn.h"

namespace pctx {

class Embryo {
 public:
  // `std_fds` are the guest's 0, 1 and 2. `cgroup` is the directory to be born in (v2), or -1.
  static Result<Embryo> conceive(std::uint64_t namespaces, std::array<int, 3> std_fds, int cgroup,
                                 ChildMain child_main = run_child);
  Embryo() = default;
  Embryo(Embryo&&) noexcept = default;
  Embryo& operator=(Embryo&& other) noexcept;
  ~Embryo();  // kills it, if it was not grown

  // Tells it the plan, whose namespaces must be those that it has, and maps its ids.
  Result<Spawned> grow(const Plan& plan, const Command& command) &&;

 private:
  SharedMemory memory_;
  ChildPlan* child_ = nullptr;
  Spawned box_;
};

}  // namespace pctx
