// Addresses that every box with an allow-list has, of the synthetic ranges: the relay's name server's, and its own.
#pragma once

#include "policy/network.h"

namespace pctx {

inline constexpr const char* kNameServer = "198.18.0.1";
inline constexpr IpPrefix kBoxAddress4{{false, {198, 18, 0, 2}}, 32};
inline constexpr IpPrefix kBoxAddress6{{true, {0xfd, 0x70, 0x63, 0x74, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}}, 128};

}  // namespace pctx
