// What the kernel says about AppArmor: which profiles are loaded and in which mode, and what confines ourselves.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pctx::sys {

bool kernel_has_apparmor();
// What is said where it has none.
inline constexpr const char* kNoAppArmor = "this kernel has no AppArmor, or it is switched off";

// "enforce", "complain", "kill" or "unconfined"; nothing if no profile of that name is loaded, or nobody tells us.
std::optional<std::string> profile_mode(std::string_view profile);

// A label as the kernel writes it, without its mode: "docker-default (enforce)" is docker-default. What is unconfined
// is no profile, also under a name (those are Ubuntu's, which grant and do not confine).
std::string confining_profile(std::string_view label);
// That of this process.
std::string own_profile();

}  // namespace pctx::sys
