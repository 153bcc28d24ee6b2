#include "box/account.h"

#include <algorithm>

namespace pctx {

void settle(const Account& account, Usage& usage) {
  usage.cpu = account.waited_cpu;
  // A child that its parent does not wait for (SIGCHLD ignored) is in nobody's sum; the watchdog may have seen it.
  if (account.watched) usage.cpu = std::max(usage.cpu.value_or(Millis{0}), account.watched->cpu);
  if (account.cgroup.cpu_microseconds)
    usage.cpu = Millis{static_cast<Millis::rep>(*account.cgroup.cpu_microseconds / 1000)};

  usage.peak_memory = account.cgroup.peak_memory;
  // The largest process is no figure of a box that has a cgroup which does not tell: nobody has seen the others.
  if (account.has_cgroup) return;
  usage.peak_memory = account.largest_process;
  if (account.watched) usage.peak_memory = std::max(usage.peak_memory.value_or(0), account.watched->memory);
}

}  // namespace pctx
