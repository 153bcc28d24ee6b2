// Measures a box from outside by its own /proc: for limits that no cgroup binds.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "base/units.h"

namespace pctx {

struct TreeUsage {
  std::uint64_t memory = 0;  // anonymous and shared memory of every process, and the scratch space
  std::uint64_t processes = 0;
  Millis cpu{0};
};

// `proc` is the box's /proc, `scratch` a directory of its tmpfs. `limit` is where counting shared pages twice starts to
// matter: only above it is the exact, dearer figure taken. `look_closely` also finds memory that no resident set shows.
TreeUsage measure_tree(int proc, int scratch, std::uint64_t limit, bool look_closely);

inline constexpr Millis kWatchInterval{10};
inline constexpr unsigned kCloseLookEvery = 4;

}  // namespace pctx
