// What the sockets of a box hold in their buffers: memory that belongs to no process and that only a cgroup would
// count.
#pragma once

#include <cstdint>

namespace pctx {

// `diag` is a NETLINK_SOCK_DIAG socket that was made in the box's network namespace. 0 where the kernel cannot tell.
std::uint64_t socket_memory(int diag);

}  // namespace pctx
