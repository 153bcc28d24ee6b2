// Host names as an allow-list may hold them: lower case, ASCII, no trailing dot.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace pctx {

inline constexpr std::size_t kMaxHostName = 253;

// What an allow-list entry says, normalised; refused with one sentence if it is no name that a resolver could mean.
Result<std::string> parse_host_name(std::string_view text);

// What a guest says (DNS question, SNI, Host), normalised to compare with a rule; empty if no rule could name it.
std::string normal_name(std::string_view text);

// RFC 3492, one label without "xn--". Empty: the input is not what it should be.
std::string punycode(std::u32string_view label);
std::u32string from_punycode(std::string_view label);

}  // namespace pctx
