// Inline script metadata (PEP 723): what a script says about itself in a comment block. Only `requires-python` and
// `dependencies` are read; tables such as [tool.uv], which could name indexes, are not. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pctx::env {

struct ScriptMetadata {
  std::string requires_python;
  std::vector<std::string> dependencies;
};

// Nothing where the script has no block; an error where it has two, or one that cannot be read.
Result<std::optional<ScriptMetadata>> read_script_metadata(std::string_view script);

inline constexpr std::size_t kMaxScriptBytes = 16U << 20;

}  // namespace pctx::env
