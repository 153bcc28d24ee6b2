// Lends a folder to a box that stands already. Once a maker's template is built nobody below it sees the host's files;
// so a process that does is left behind before that. It is the maker's child, with the same rights: all in its own user
// namespace, none outside. It takes orders from the Broker and from nobody else.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "launch/child_plan.h"
#include "plan/plan.h"

namespace pctx {

// Between clone and exec: starts the process; what is returned is the end of its socket that is the Broker's.
int start_binder(const ChildPlan& plan) noexcept;

// Its end, by the code EPIPE.
Error binder_ended();

// Mounts `folder` at /mnt of the box whose mount namespace is given. `tree` is a detached mount of it that the Broker
// has made itself, where that takes rights that only the Broker has; -1: the binder makes one. The answer is a
// StatusFrame: Message::mounted, index = tag, value = errno.
Result<void> order_mount(int binder, std::uint16_t tag, const LentPath& folder, int mount_namespace, int tree);

}  // namespace pctx
