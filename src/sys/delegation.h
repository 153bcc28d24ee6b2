// Whether a cgroup of v2 is lent to those who run in it. A user owns the cgroups of all units of his own
// manager, so that write permission says nothing: in a unit without Delegate= systemd goes on ruling, and one process
// that runs out of memory anywhere below makes it stop the whole unit (OOMPolicy=stop), the supervisor of the box
// included.
#pragma once

#include <string>
#include <string_view>

namespace pctx {

// In the environment of our second start, inside a scope that we asked systemd for: the scope is delegated.
inline constexpr const char* kScopeMark = "PCTX_SANDBOX_SCOPE";

// cgroup v2, and nothing else, is mounted where all look for it.
bool has_unified_cgroups();

// The nearest service or scope that holds the cgroup, which may be the cgroup itself; empty where no unit holds it.
std::string_view unit_of(std::string_view cgroup);

// `directory` is where the hierarchy is mounted, `cgroup` a path in it.
bool is_delegated(std::string_view directory, std::string_view cgroup);

}  // namespace pctx
