// Where `--report` writes to.
#pragma once

#include <optional>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace pctx::cli {

// A descriptor that the caller has opened, as in >(command): looked for before we open any of our own. Empty for a
// path.
Result<Fd> report_of_caller(const std::optional<std::string>& path);

// What is written to, which may be `opened` already: before the run, and not through a link. Neither this guest nor an
// earlier one chooses what is overwritten. Empty without a path.
Result<Fd> open_report(const std::optional<std::string>& path, Fd opened);

}  // namespace pctx::cli
