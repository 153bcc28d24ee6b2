// The first mistake of many: a file that lies here is taken to be in the box too. Here are the words for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "plan/plan.h"

namespace pctx::cli {

// Pure. For `word`, a file here: what to write instead.
std::string run_own_file(const std::string& word);
// Pure. For `word`, a path here and part of `command`: that it is not in the box, and what to write instead.
Error lacks_own_path(const std::vector<std::string>& command, const std::string& word);

// The error of a box that could not be run, with a better hint where the command lies here.
Error with_own_file(Error error, const std::string& word, const Plan& plan);
// For a command that failed: the first of its words that lies here and cannot be in the box.
std::optional<Error> own_path_of(const std::vector<std::string>& command, const Plan& plan);

}  // namespace pctx::cli
