// The self-check: plants what the probes attack, runs them in boxes and in an open one, and compares.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/selfcheck_probes.h"

namespace pctx::cli {

enum class Verdict {
  held,
  failed,  // the attack came through the box
  blind,   // it was stopped in the open box too, so that nothing is shown
};

struct Finding {
  std::string name, tried, stopped_by;
  Attempt boxed, open;
  bool control = true;  // false: something that must work, which needs none
  Verdict verdict() const;
};

struct Absent {
  std::string name, why;
};

struct Checked {
  std::vector<Finding> findings;
  std::vector<Absent> absent;  // not promised by this configuration on this host
  std::array<LayerState, kLayers.size()> layers;
  std::optional<Error> error;  // no box could be made
};

// `open`: the open box takes the box's place.
Result<Checked> run_checks(const RunArguments& arguments, bool extra, bool open);

}  // namespace pctx::cli
