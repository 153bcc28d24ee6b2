// Environments as the command line shows them: the progress of a build, and why one failed.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "env/build.h"

namespace pctx::cli {

// On a terminal, once a build has lasted a second: one line for each step, with its seconds. Silent elsewhere.
env::Progress show_progress();

// Why there is no Environment: one sentence, then the resolver's own words, safe to show.
void explain_failure(const env::Ensured& ensured, const std::vector<std::string>& requirements);

// Said before packages' code may run in a build.
void warn_about_source();

}  // namespace pctx::cli
