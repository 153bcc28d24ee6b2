// What the Broker sees of a Worker from outside. A Zygote runs other people's code, so what it or its Workers say about
// themselves counts for nothing: a Worker is lent only after the kernel has been asked.
#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/units.h"
#include "plan/plan.h"

namespace pctx {

// The host's pid of the process behind a pidfd of ours.
Result<pid_t> pid_of(int pidfd);

// Whether that process has ended, or does while we wait.
bool ends_within(int pidfd, Millis patience);

// The Worker in a box: the one process there beside its init. Such a process is a child of the maker's; `known` are
// those children that are something else. Fails if there is none, or more than one.
Result<pid_t> find_worker(pid_t maker, pid_t init, const std::set<pid_t>& known);

// Which pid namespace a process is in; nothing if it is gone. Boxes differ in it.
using PidNamespace = std::optional<std::pair<dev_t, ino_t>>;
PidNamespace pid_namespace(pid_t pid);

// What the maker calls the process that the host calls `pid`.
Result<pid_t> pid_below(pid_t pid);

// Its namespaces and root are those of the box's init, it stands in `workdir` there, every capability set is empty,
// no_new_privs and the filter are on, it has one thread, no descriptor but copies of ours in `given`, and no memory or
// table of descriptors in common with its Zygote or with the next Worker.
Result<void> inspect_worker(pid_t worker, pid_t init, pid_t zygote, const std::vector<int>& given,
                            const std::string& workdir);

// Its box's namespaces in the order in which they can be entered: what the Zygote forks into. On the host's network the
// Zygote is there already, and nobody in a box has the right to enter it. /dev/null stands for one that the host
// refuses.
Result<std::vector<Fd>> open_namespaces(pid_t init, const Plan& plan);

// Between two forks. Whatever a Zygote keeps of the Worker that it forked last (a descriptor of its box, a process that
// holds one, a folder to start from) would let it in there during the call: it has no descriptor but copies of ours in
// `given`, no child, nothing left behind that runs, and stands where it was put.
Result<void> inspect_zygote(pid_t zygote, pid_t maker, const std::vector<int>& given);

// A Worker that waits for its call, in a box whose first process is `init`, and a Zygote that waits for an order do
// nothing. What they open or start all the same, from a timer, would hold memory of the kernel that nobody counts: no
// thread has more descriptors than it was given, and nobody else is there. Whoever has ended keeps still.
bool waits_still(pid_t worker, pid_t init, pid_t maker);
bool zygote_waits_still(pid_t zygote, pid_t maker);

// Ends what a Zygote, or the one before it, has started and left behind while it imported.
void end_strays(pid_t maker, pid_t zygote);

}  // namespace pctx
