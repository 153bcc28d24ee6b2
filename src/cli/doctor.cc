#include "cli/verbs.h"

namespace pctx::cli {

void add_doctor(CLI::App&, int&) {}

}  // namespace pctx::cli
