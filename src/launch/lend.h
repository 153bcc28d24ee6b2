// From a Policy to a Plan for this host: looks at what the policy lends, probes the host, compiles. The one place that
// looks at the host before a box, for everyone who starts one.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "plan/plan.h"

namespace pctx {

// What a path is, links resolved. `name` is what messages call it. Sockets, devices and whole system folders are
// refused.
Result<LentPath> look_at(const std::string& name, const std::string& path, bool as_is = false);

// Where a guest of this policy may write on the host, links resolved; what is not there is left out.
std::vector<std::string> lent_writable(const Policy& policy);

// What was named as `given` lies at `found`, links resolved. An error if the way there leads into a folder that this
// policy lends to be written, and out of it again: a guest that had that folder may have made the link.
Result<void> check_stays(const Policy& policy, const std::string& name, const std::string& given,
                         const std::string& found);

// Fills in what `inputs` must know about lent paths, resolves the policy's own, and compiles.
Result<Plan> compile_here(Policy& policy, CompileInputs inputs, const CgroupHost* cgroups = nullptr);

}  // namespace pctx
