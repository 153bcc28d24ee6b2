// The per-user daemon: owns pools and leases, and talks to callers over one socket. It starts by itself and leaves by
// itself.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "base/result.h"
#include "broker/address.h"
#include "pool/pool.h"
#include "sys/loop.h"

namespace pctx {

struct BrokerOptions {
  std::chrono::seconds idle_exit{600};
  std::chrono::seconds idle_pool{300};
  std::chrono::seconds unused_lease{60};
  std::size_t max_workers = 64;     // alive at one time, over all pools
  std::uint64_t memory_budget = 0;  // bytes of all pools above which no Worker is added; 0: half of what there is
  std::size_t max_queue = 1000;     // callers that wait for one
  bool inside = false;              // in a container, whose user namespace may not know the caller's uid
};

// Half of the memory of this machine, or of the container that we are in.
std::uint64_t default_memory_budget();

// Serves `listener` until nobody has called for a while, or somebody asks it to stop.
Result<void> serve(Fd listener, const BrokerOptions& options);

}  // namespace pctx
