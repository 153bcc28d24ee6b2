// Where a new process begins to run. Safe between clone and exec: no allocation, no lock.
#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pctx::sys {

// Lets `pid` run on the CPUs of `allowed` that the caller is not on. Best effort: it is about speed alone. Children
// inherit it: `pid` goes back to all of `allowed` before it makes any that stay.
inline void send_elsewhere(pid_t pid, const cpu_set_t& allowed) noexcept {
  cpu_set_t others = allowed;
  unsigned here = 0;
  if (::syscall(SYS_getcpu, &here, nullptr, nullptr) != 0 || here >= CPU_SETSIZE) return;
  CPU_CLR(here, &others);
  (void)::syscall(SYS_sched_setaffinity, pid, sizeof others, &others);
}

}  // namespace pctx::sys
