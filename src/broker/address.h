// Where the Broker listens, and that nobody else can be listening there.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace pctx {

inline constexpr const char* kBrokerProcess = "pctx-broker";

struct BrokerAddress {
  std::string folder;  // 0700, ours; empty when the socket was named by PCTX_SANDBOX_SOCKET
  std::string socket;
  std::optional<uid_t> uid = {};  // whose Broker answers there; the caller's own unless a container has another user
};

// `version` is part of the name: Brokers of two versions live side by side.
Result<BrokerAddress> broker_address(std::string_view version);

// Binds the socket; the Broker that is there already keeps it (not an error: nullopt). Holds a lock for as long as the
// returned descriptors live.
struct Bound {
  Fd lock, listener;
  bool inherited = false;  // the socket is systemd's and outlives the Broker
};
Result<std::optional<Bound>> bind_broker(const BrokerAddress& address);

// The socket that systemd listens on for us (LISTEN_FDS, LISTEN_PID); nullopt if this process was not started so. An
// error if that socket is not the one at which callers of this version look.
Result<std::optional<Bound>> inherit_broker(const BrokerAddress& address);

Result<Fd> connect_broker(const BrokerAddress& address);

// The Broker at the other end of a connection, or 0. Whoever called listen() counts as the other end: that is systemd,
// for a connection made before the Broker that it starts.
int broker_pid(const Fd& connection);

}  // namespace pctx
