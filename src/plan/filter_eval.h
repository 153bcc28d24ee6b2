// Runs a seccomp program in memory: what the kernel would answer to a call, without installing anything.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <span>

namespace pctx {

inline constexpr std::uint32_t kAllow = SECCOMP_RET_ALLOW, kKill = SECCOMP_RET_KILL_PROCESS;
constexpr std::uint32_t fails_with(int code) { return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(code); }

// The SECCOMP_RET_* value. Knows the instructions that the kernel accepts in a seccomp filter; a program with anything
// else could not be installed, and counts as SECCOMP_RET_KILL_PROCESS when it gets there.
std::uint32_t evaluate(std::span<const sock_filter> program, const seccomp_data& call);

// The same, with the number of instructions that ran: the price of one call.
struct Evaluation {
  std::uint32_t verdict = SECCOMP_RET_KILL_PROCESS;
  std::uint32_t steps = 0;
  bool reads_arguments = false;  // if not, Linux 5.11 and later answer without running the filter
};
Evaluation trace_evaluation(std::span<const sock_filter> program, const seccomp_data& call);

}  // namespace pctx
