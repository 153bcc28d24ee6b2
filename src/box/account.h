// What a box has used, by everybody who counts: its cgroup, those who waited for its processes, and the watchdog. Each
// may have nothing to say; a figure of the Receipt is then another's, or none.
#pragma once

#include <optional>

#include "base/units.h"
#include "box/cgroup.h"
#include "box/receipt.h"
#include "box/watchdog.h"

namespace pctx {

struct Account {
  CgroupUsage cgroup;
  bool has_cgroup = false;
  // Of every process of the box; nothing if one of them was killed without anybody waiting for it.
  std::optional<Millis> waited_cpu;
  std::optional<std::uint64_t> largest_process;  // the most that a single one of those held
  std::optional<TreeUsage> watched;              // the highest figures seen
};

// Pure. Sets CPU time and peak memory.
void settle(const Account& account, Usage& usage);

}  // namespace pctx
