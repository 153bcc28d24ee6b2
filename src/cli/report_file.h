// Where `--report` writes to.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "policy/policy.h"

namespace pctx::cli {

// What is written to, empty without a path. A path is opened before anything can fail or run, and not through a link:
// no guest chooses what is overwritten, and an earlier report is never taken for that of a run that failed. A
// descriptor that the caller has opened, as in >(command), is looked for before we open any of our own.
Result<Fd> open_report(const std::optional<std::string>& path);

// An error if the report lies in what this policy lends to be written: its guest would take it away and leave one of
// its own under the name. `report`: a descriptor, -1 for none.
Result<void> check_report(const Policy& policy, int report);

// In place of what is there by now: a guest may have had the same file under another name.
Result<void> write_report(int report, std::string_view json);

// A `run` line that cannot be read may still say where its report is wanted, as JSON or in a file, before the first
// word that is no option: the error goes there. What stands behind may be the command's.
void report_mistake(const std::vector<std::string>& options, const Error& error);

}  // namespace pctx::cli
