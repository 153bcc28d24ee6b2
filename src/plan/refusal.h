// What happens to a call that the filter refuses: what the supervisor answers, and what a report says of it. Pure.
#pragma once

#include <linux/seccomp.h>

#include <cstdint>
#include <optional>
#include <string>

#include "plan/plan.h"

namespace pctx {

struct RefusalAnswer {
  int code = 0;        // errno; 0 if a profile wants the call answered as done
  std::string reason;  // why, and what to do about it
};

// For a call that comes to the supervisor: by our own list, by the user's profile, or by limit_rules() on top of it.
RefusalAnswer answer_refusal(const Plan& plan, const seccomp_data& call);

// Shared anonymous memory where no cgroup counts it. An object keeps its pages while one of them is mapped, so that no
// watchdog sees the others; but none can outgrow its size, which mmap() is told in a register. So a box may have some:
// every mapping counts in full, as if it were never given back, and all together get this share of the memory limit.
inline constexpr std::uint64_t kSharedPartOfMemory = 4;
std::uint64_t shared_allowance(const Plan& plan);

// What the object behind such a mapping can hold at most; nullopt if the call makes none, or one of unknown size.
std::optional<std::uint64_t> shared_mapping(const Plan& plan, const seccomp_data& call);

// Filters of a guest's own: their memory is charged to nobody, up to 140 KB each, and counts against a limit of the
// whole host's without which nobody gets a filter. A run may set so many; processes that inherit one need no other.
inline constexpr unsigned kMostFilters = 64;
bool makes_filter(const Plan& plan, const seccomp_data& call);

// For which calls the filter sends SIGSYS instead of answering, in words; empty without a filter.
std::string killed_calls(const Plan& plan);

}  // namespace pctx
