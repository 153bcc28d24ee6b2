#include "launch/pick_cpus.h"

#include <cstdint>
#include <vector>

namespace pctx {

cpu_set_t pick_cpus(const cpu_set_t& allowed, unsigned count, unsigned seed) {
  std::vector<unsigned> cpus;
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  // Mixed: every box takes the same few pids, so that their remainders may all be the same.
  const std::uint32_t start = (std::uint32_t{seed} * 2'654'435'761U) >> 16;
  for (std::size_t i = 0; i < cpus.size() && i < count; ++i) CPU_SET(cpus[(start + i) % cpus.size()], &chosen);
  return chosen;
}

}  // namespace pctx
