// A script that comes on standard input, before the interpreter in the box gets it.
#pragma once

#include <string>

#include "base/result.h"
#include "base/units.h"

namespace pctx::cli {

// What will be read there; empty for a terminal. A file stays where it is. From a pipe all is read now, as Python does
// before it runs anything, for `patience` at most (0: for ever), and standard input is a file that holds it from then
// on.
Result<std::string> script_on_input(Millis patience);

}  // namespace pctx::cli
