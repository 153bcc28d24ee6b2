// Builds Environments: `uv` in a Box of its own that sees the host read-only, writes only the new folder, and knows no
// other box and no store. What it leaves is frozen, recorded and published by one rename.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "env/store.h"

namespace pctx::env {

struct Request {
  std::vector<std::string> requirements;
  std::string python;           // path or name; empty: the system's
  std::string requires_python;  // a script's wish, where `python` is empty
  bool fresh = false;           // build even if there is one
  bool source = false;          // source distributions may run their code
  bool find_only = false;       // never build
  Millis timeout{600'000};
};

// One step of a build, for those who wait: called about four times a second, and once with `done`.
using Progress = std::function<void(std::string_view step, Millis passed, bool done)>;

struct Ensured {
  std::optional<Environment> environment;  // nothing: it could not be built
  bool built = false;                      // by us, now
  std::string why;                         // one sentence, where it could not be built
  std::string words;                       // the resolver's own
};

// Finds the Environment, or builds it. An Error is ours (no uv, no box, no disk); that packages cannot be had is not.
Result<Ensured> ensure(const Request& request, const Progress& progress);

// The interpreter that a request means.
Result<Interpreter> interpreter_for(const Request& request, const Store& store);

// Whether PCTX_SANDBOX_ALLOW_URLS lets requirements name addresses.
bool addresses_are_allowed();

}  // namespace pctx::env
