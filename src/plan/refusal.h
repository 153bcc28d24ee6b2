// What happens to a call that the filter refuses: what the supervisor answers, and what a report says of it. Pure.
#pragma once

#include <linux/seccomp.h>

#include <string>

#include "plan/plan.h"

namespace pctx {

struct RefusalAnswer {
  int code = 0;        // errno; 0 if a profile wants the call answered as done
  std::string reason;  // why, and what to do about it
};

// For a call that comes to the supervisor: by our own list, or by the user's profile.
RefusalAnswer answer_refusal(const Plan& plan, const seccomp_data& call);

// For which calls the filter sends SIGSYS instead of answering, in words; empty without a filter.
std::string killed_calls(const Plan& plan);

}  // namespace pctx
