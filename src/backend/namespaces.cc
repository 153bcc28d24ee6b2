#include "backend/namespaces.h"

#include <fmt/format.h>

#include "base/units.h"
#include "launch/probe.h"
#include "sys/process.h"

namespace pctx::backend {
namespace {

constexpr Millis kPatience{60'000};
constexpr std::size_t kMostComplaint = 16_KiB;

}  // namespace

Standing look_at_namespaces() {
  LayerSet required;
  for (const LayerInfo& entry : kLayers) required.set(index(entry.layer), entry.required);
  const LayerSet missing = probe_missing(required, probe_host());
  std::string refused;
  for (const LayerInfo& entry : kLayers)
    if (missing.test(index(entry.layer))) refused += fmt::format("{}{}", refused.empty() ? "" : ", ", entry.name);
  if (refused.empty()) return {true, "this host gives every required layer", ""};
  return {false, fmt::format("this host refuses: {}", refused), ""};
}

Result<BrokerAddress> address_of_namespaces(const std::string& version) { return broker_address(version); }

Result<Reached> reach_namespaces(const Wanted& wanted) {
  Reached reached;
  reached.address = PCTX_TRY(broker_address(wanted.version));
  if (connect_broker(reached.address)) return reached;
  // By itself: it leaves this process's session, folder and descriptors behind.
  const auto done = PCTX_TRY(sys::run_program({"/proc/self/exe", "serve"}, -1, kMostComplaint, kPatience));
  if (done.status != 0) return unavailable(fmt::format("the Broker did not start: {}", done.err), "");
  return reached;
}

}  // namespace pctx::backend
