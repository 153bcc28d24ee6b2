// Which CPUs a box is pinned to, where no cgroup shares them out.
#pragma once

#include <sched.h>

namespace pctx {

// `count` of the CPUs in `allowed`, or all if there are fewer. `seed` is any number that differs from box to box, as a
// pid does: boxes begin at different CPUs.
cpu_set_t pick_cpus(const cpu_set_t& allowed, unsigned count, unsigned seed);

}  // namespace pctx
