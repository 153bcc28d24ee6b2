// What the Broker sees of a Worker from outside. A Zygote runs other people's code, so what it or its Workers say about
// themselves counts for nothing: a Worker is lent only after the kernel has been asked.
#pragma once

#include <sys/types.h>

#include <array>
#include <set>

#include "base/fd.h"
#include "base/result.h"

namespace pctx {

// The host's pid of the process behind a pidfd of ours.
Result<pid_t> pid_of(int pidfd);

// The Worker in a box: the one process there beside its init. Such a process is a child of the maker's; `known` are
// those children that are something else. Fails if there is none, or more than one.
Result<pid_t> find_worker(pid_t maker, pid_t init, const std::set<pid_t>& known);

bool share_pid_namespace(pid_t one, pid_t other);

// What the maker calls the process that the host calls `pid`.
Result<pid_t> pid_below(pid_t pid);

// Its namespaces are all those of the box's init, every capability set is empty, no_new_privs and the filter are on,
// it has one thread and no descriptor beyond the four of a Worker.
Result<void> inspect_worker(pid_t worker, pid_t init);

// Its box's namespaces in the order in which they can be entered: what the Zygote forks into.
struct NamespaceFds {
  std::array<Fd, 7> fds;
};
Result<NamespaceFds> open_namespaces(pid_t init);

// Nothing that a Worker writes may reach the next one: no writable shared mapping, and no descriptor but the Zygote's.
Result<void> inspect_zygote(pid_t zygote);

}  // namespace pctx
