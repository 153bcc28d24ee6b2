// What the relay gives up before it reads the first byte of a guest: files, other processes, capabilities, every system
// call that it does not need. The host's network stays.
#pragma once

#include "base/result.h"
#include "plan/filter.h"

namespace pctx::net {

// The calling process has a single thread and holds every descriptor it will need but sockets and pipes. Returns how
// many it may have in all. Fails closed: after an error the process must end.
Result<std::size_t> confine();

// The allow-list, for its test.
FilterSpec relay_filter(Arch arch);

}  // namespace pctx::net
