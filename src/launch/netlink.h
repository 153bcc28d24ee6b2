// Messages for NETLINK_ROUTE, written before the clone: between clone and exec they are only sent.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace pctx {

inline constexpr int kLoopback = 1;  // the first interface of every network namespace

struct NetlinkMessages {
  std::vector<std::uint8_t> bytes;
  std::uint32_t last = 0;  // sequence number of the last one, which asks for an answer
};

// For one family of addresses: loopback up, and what is local. Over IPv6 that is everything: the kernel turns a route
// through loopback to any address but its own into one that leads nowhere, after a second. The relay tells addresses
// that are on the list from others.
NetlinkMessages local_routes(const NetworkPlan& network, bool ipv6);
// The way to all other addresses, which leads to where the watchers see who takes it.
NetlinkMessages watched_route(const NetworkPlan& network);

}  // namespace pctx
