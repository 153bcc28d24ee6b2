// The box's network with an allow-list, between clone and exec: see child_plan.h for the rules of that place.
#pragma once

#include <linux/filter.h>

#include <cstddef>
#include <cstdint>

namespace pctx {

struct ChildPlan;

// Messages for NETLINK_ROUTE, one behind the other; the last one asks for an answer.
struct NetlinkBatch {
  const void* messages;
  std::size_t size;
  std::uint32_t last;  // its sequence number; 0: there is nothing to send
};

struct ChildNetwork {
  NetlinkBatch local4, local6;  // addresses and routes
  NetlinkBatch watched_route;   // the way to where the watchers look
  const std::uint16_t* ports;
  std::size_t port_count;
  sock_fprog watched;  // what the watchers are shown
};

// Which of the optional ends came, in the frames' `pad`.
inline constexpr std::uint8_t kHasPacket = 1, kHasRaw4 = 2, kHasRaw6 = 4;

// Brings loopback up, makes every address of the plan local, opens what the relay serves from outside and sends it away
// as Message::network: first DNS over UDP and over TCP, then the watchers that `pad` names, then one listener for each
// port. `index` is the place of a frame's first descriptor, `value` how many there are in all.
void make_network(const ChildPlan& plan) noexcept;

}  // namespace pctx
