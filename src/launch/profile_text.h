// The AppArmor profile of one virtualenv: written from the Plan of a run with it, so that it names what such a box has
// and nothing else. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "plan/plan.h"

namespace pctx {

// Both profiles of the file: NAME, and NAME-zygote for warm runs. An error if AppArmor cannot name a path literally.
Result<std::string> payload_profile(const std::string& name, const Plan& plan);

// What differs, line by line: "- " only in `installed`, "+ " only in `wanted`, with the lines around. Empty if nothing.
std::string profile_diff(std::string_view installed, std::string_view wanted);

}  // namespace pctx
