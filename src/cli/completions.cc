#include "cli/verbs.h"

namespace pctx::cli {

void add_completions(CLI::App&, int&) {}

}  // namespace pctx::cli
