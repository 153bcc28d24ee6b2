// Messages for NETLINK_ROUTE, written before the clone: between clone and exec they are only sent.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace pctx {

struct NetlinkMessages {
  std::vector<std::uint8_t> bytes;
  std::uint32_t last = 0;  // sequence number of the last one, which asks for an answer
};

// For one family of addresses: loopback up, and what is local.
NetlinkMessages local_routes(const NetworkPlan& network, bool ipv6);
// The way to all other addresses, which leads to where the watchers see who takes it.
NetlinkMessages watched_route(const NetworkPlan& network, bool ipv6);

}  // namespace pctx
