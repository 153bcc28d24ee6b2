// "No such file or directory" is also what the kernel says of a program that is there, and whose interpreter is not.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "plan/plan.h"

namespace pctx::cli {

// Pure. What the kernel starts to run the file that begins like this: of its #! line, or the loader of its libraries.
// Empty if it starts the file itself.
std::string interpreter_named(std::string_view head);

// The error of a command that is not there, with what is missing instead where the command is.
Error with_interpreter(Error error, const std::string& word, const Plan& plan);

}  // namespace pctx::cli
