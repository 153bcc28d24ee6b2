// How long this process has worked, which on a busy machine is less than the time that has passed: what looks at boxes
// paces itself by it.
#pragma once

#include <chrono>
#include <ctime>

namespace pctx::sys {

inline std::chrono::nanoseconds cpu_time() {
  timespec spent{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return std::chrono::seconds{spent.tv_sec} + std::chrono::nanoseconds{spent.tv_nsec};
}

}  // namespace pctx::sys
