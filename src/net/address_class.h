// Which addresses are the public internet, and what the others are. Every connection asks, after resolution.
#pragma once

#include <string_view>

#include "policy/ip.h"

namespace pctx::net {

// Empty for an address of the public internet; else what it is ("private", "loopback", …). Addresses that carry an IPv4
// address inside (mapped, NAT64, 6to4, ISATAP) are what that one is.
std::string_view closed_class(const IpAddress& address);

}  // namespace pctx::net
