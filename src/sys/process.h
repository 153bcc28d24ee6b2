// A trusted program of the host, run for what it prints: the host's interpreter about itself. Never for a guest.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace pctx::sys {

// Standard output of a program that exits with 0; anything else is an error that says what it was. Its standard input
// is empty, what it says on standard error is dropped.
Result<std::string> output_of(const std::vector<std::string>& argv, std::size_t limit, Millis timeout);

}  // namespace pctx::sys
