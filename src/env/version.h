// `requires-python`: whether a release satisfies a list of version specifiers (PEP 440), for plain releases. Pure.
#pragma once

#include <array>
#include <string_view>

#include "base/result.h"

namespace pctx::env {

// The longer ones first: that which fits first is meant.
inline constexpr std::array<std::string_view, 8> kVersionOperators{"===", "==", "!=", "~=", ">=", "<=", ">", "<"};

// "3.11.2" against ">=3.10,<4"; an empty list accepts everything.
Result<bool> satisfies(std::string_view version, std::string_view specifiers);

}  // namespace pctx::env
