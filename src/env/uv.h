// Where `uv` is: the one program that builds need. Found only when something must be built.
#pragma once

#include <string>

#include "base/result.h"

namespace pctx::env {

// Beside our own program, on the PATH, or in the Python environment of `python` (its package `uv`).
Result<std::string> find_uv(const std::string& python);

}  // namespace pctx::env
