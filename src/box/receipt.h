// Receipt: what was really enforced for this run, and what it used. With the Outcome it makes the report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "box/collect.h"
#include "box/denials.h"
#include "box/outcome.h"
#include "net/relay.h"
#include "plan/plan.h"

namespace pctx {

struct Usage {
  Millis wall{0};
  std::optional<Millis> cpu;  // these two: nothing if nobody counted
  std::optional<std::uint64_t> peak_memory;
  std::uint64_t stdout_bytes = 0;
  std::uint64_t stderr_bytes = 0;
};

struct Receipt {
  std::string backend = "namespaces", backend_reason;  // the reason may be empty: nothing else was thought of
  std::string backend_limits;                          // of the container around all boxes, in words
  std::array<LayerState, kLayers.size()> layers;
  std::vector<LimitBinding> limits;
  Usage usage;
  bool truncated = false;               // output beyond the limit was cut off
  std::uint64_t processes_refused = 0;  // by the process limit, where a cgroup counts; of a guest that failed
  DenialBook denials;
  bool denials_recorded = true;
  std::optional<NetworkRecord> network;  // with an allow-list
  bool attempts_recorded = true;         // of reaching something else by its address
};

struct Ending {
  Outcome outcome;
  Receipt receipt;
  std::string captured_stdout, captured_stderr;  // only when asked for
  std::optional<FolderChanges> changes;
  int forwarded_signal = 0;  // the last one that we were sent and passed on
  int typed_signal = 0;      // and that came from a key of our terminal
  int sink_error = 0;        // why a part of the guest's output could not be passed on; 0 if nobody wanted it any more
};

// The JSON of --report and --json; `captured` adds stdout and stderr.
std::string report_json(const Ending& ending, bool captured, int indent = 2);
std::string error_json(const Error& error);

}  // namespace pctx
