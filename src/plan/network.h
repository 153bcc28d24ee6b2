// Addresses that every box with an allow-list has: names get theirs from the synthetic ranges, the relay's name server
// and the box itself have fixed ones.
#pragma once

#include "policy/network.h"

namespace pctx {

// For measuring devices (RFC 2544), so that no host that somebody wants to reach has one of them; and a ULA prefix.
inline constexpr IpPrefix kSyntheticRange4{{false, {198, 18}}, 15};
inline constexpr IpPrefix kSyntheticRange6{{true, {0xfd, 0x70, 0x63, 0x74, 0x78}}, 64};
inline constexpr const char* kNameServer = "198.18.0.1";
inline constexpr IpPrefix kBoxAddress4{{false, {198, 18, 0, 2}}, 32};
inline constexpr IpPrefix kBoxAddress6{{true, {0xfd, 0x70, 0x63, 0x74, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}}, 128};

}  // namespace pctx
