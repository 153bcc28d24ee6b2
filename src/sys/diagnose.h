// Why this host refuses a box, in words, with the exact next step. Looked at only after a failure, and by `doctor`.
#pragma once

#include <string>

#include "base/result.h"

namespace pctx {

Error explain_clone_failure(int code);
// The namespaces were made, but their owner has no power in them (AppArmor on Ubuntu 24.04 does that).
Error explain_privilege_failure(std::string what, int code);
Error explain_proc_failure(int code, bool may_do_without);
// The same with a next step, if it has none.
Error with_next_step(Error error);

// Facts behind those sentences.
enum class Container { none, docker, podman, kubernetes, other };
Container container_kind();
bool in_container();
bool apparmor_restricts_namespaces();

}  // namespace pctx
