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
  std::size_t max_workers = 64;  // alive at one time, over all pools
  std::size_t max_queue = 1000;  // callers that wait for one
  bool inside = false;           // in a container, whose user namespace may not know the caller's uid
};

// Serves `listener` until nobody has called for a while, or somebody asks it to stop.
Result<void> serve(Fd listener, const BrokerOptions& options);

}  // namespace pctx
