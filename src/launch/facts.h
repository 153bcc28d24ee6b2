// Gathers what `remedies` decides on: reads settings and tries layers. Changes nothing; costs some thirty short-lived
// processes.
#pragma once

#include "launch/remedies.h"

namespace pctx {

HostFacts gather_facts();

// As root: the same for an ordinary user, tried with that user's id; for `sudo` the user behind it, else nobody's.
// Empty if we may not change our id.
std::optional<HostFacts> gather_user_facts(const HostFacts& own);

}  // namespace pctx
