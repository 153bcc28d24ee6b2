#include "cli/verbs.h"

namespace pctx::cli {

void add_setup(CLI::App&, int&) {}

}  // namespace pctx::cli
