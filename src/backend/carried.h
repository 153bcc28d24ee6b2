// A Broker that no socket of this machine leads to: a command does, whose standard input and output are a stream to
// `pctx-sandbox carry` over there. `podman exec` and `limactl shell` are such commands; so is `ssh`.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "broker/address.h"

namespace pctx::backend {

inline constexpr const char* kCarrierProcess = "pctx-carrier";

struct CarriedBy {
  std::vector<std::string> command;
  Millis patience{60'000};  // for the first word of the other end
  std::chrono::seconds idle{600};
};

// Serves callers at `address` until the stream ends or nobody calls. Not an error: somebody else serves them already.
Result<void> carry_here(const BrokerAddress& address, const CarriedBy& by);

// The same in a process of its own, once the other end has answered; its words are in the error if it does not.
Result<void> carry_behind(const BrokerAddress& address, const CarriedBy& by);

// The other end: our standard streams lead to the Broker here, which is started if none runs; `inside` a container it
// is waited for, since it is the first process there.
Result<void> carry_there(const std::string& version, bool inside);

}  // namespace pctx::backend
