// Looks at what a policy lends, before anything is compiled.
#pragma once

#include "plan/plan.h"

namespace pctx {

// Resolves the policy's folders and files and reads its seccomp profile: fills `inputs` and makes the paths in `policy`
// absolute. Refuses what must never be lent.
Result<void> look_at_lent(Policy& policy, CompileInputs& inputs);

}  // namespace pctx
