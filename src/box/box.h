// One Box's life: made from a Plan, supervised by a single-threaded loop, ended with an Outcome, cleaned up after.
#pragma once

#include <functional>

#include "base/result.h"
#include "box/head_start.h"
#include "box/receipt.h"
#include "launch/spawn.h"
#include "plan/plan.h"

namespace pctx {

struct RunOptions {
  bool capture = false;         // keep stdout and stderr in the Ending instead of passing them on
  bool report_changes = false;  // list what changed under /mnt
  bool no_input = false;        // the guest's standard input is empty; ours stays untouched
  bool last = false;            // this process ends with the run: what takes care of itself is left to do so
  std::function<bool()> tick;   // called about every kTick while the box runs; false ends the box
};

inline constexpr Millis kTick{250};

// Runs to the end. Uses the process's standard streams, and handles its signals meanwhile: forwards them to the guest.
// `head` may be null.
Result<Ending> run_box(const Plan& plan, const Command& command, const RunOptions& options,
                       std::unique_ptr<HeadStart> head = nullptr);

}  // namespace pctx
