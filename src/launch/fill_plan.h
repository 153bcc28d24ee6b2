// From a Plan to the plain memory that a box's first processes read it from.
#pragma once

#include <vector>

#include "base/fd.h"
#include "launch/child_plan.h"
#include "launch/shared_memory.h"
#include "launch/spawn.h"

namespace pctx {

// A detached mount that only we can make: it follows by Message::tree.
struct LentTree {
  std::size_t op;
  Fd tree;
};

struct Lent {
  std::vector<LentTree> trees;
  std::vector<IdMapping> mappings;  // to be let go when the box no longer waits for us
};

// Writes everything but what `child` was born with.
Result<Lent> fill(const Plan& plan, const Command& command, SharedMemory& memory, ChildPlan& child);

}  // namespace pctx
