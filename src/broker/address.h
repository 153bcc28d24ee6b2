// Where the Broker listens, and that nobody else can be listening there.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace pctx {

struct BrokerAddress {
  std::string folder;  // 0700, ours; empty when the socket was named by PCTX_SANDBOX_SOCKET
  std::string socket;
};

// `version` is part of the name: Brokers of two versions live side by side.
Result<BrokerAddress> broker_address(std::string_view version);

// Binds the socket; the Broker that is there already keeps it (not an error: nullopt). Holds a lock for as long as the
// returned descriptors live.
struct Bound {
  Fd lock, listener;
};
Result<std::optional<Bound>> bind_broker(const BrokerAddress& address);

Result<Fd> connect_broker(const BrokerAddress& address);

}  // namespace pctx
