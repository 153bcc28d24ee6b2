// Looks at what boxes hold in the kernel without any memory cgroup counting it: buffers of sockets on cgroup v1,
// connections that nobody has accepted, sockets that outlived their owner, file locks. A process of its own looks,
// because reading /proc/locks makes the kernel wait for 8 ms and more, during which a supervisor relays output and a
// Broker has callers to serve.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/fd.h"
#include "base/result.h"
#include "base/units.h"
#include "box/outcome.h"

namespace pctx {

// Short runs are not looked at: whoever fills the kernel's memory needs longer.
inline constexpr Millis kFirstLook{50};

class Lookout {
 public:
  struct Box {
    int proc;              // its /proc
    int diag;              // a NETLINK_SOCK_DIAG socket of its own network; -1: its sockets are not to be looked at
    std::uint64_t memory;  // its limit
    bool charged;          // by a cgroup of v2, for the buffers of sockets
  };

  Lookout() = default;
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  // Readable once the box holds too much; read_excess() tells of what. Watching ends when it is closed.
  Result<Fd> watch(const Box& box);
  void release() noexcept;  // no more looks; without waiting for the process to be gone

 private:
  void start();
  void stop() noexcept;

  Fd orders_;
  pid_t pid_ = -1;
};

// Writes into the verdict what a readable descriptor of watch() says; false if nobody watches any more.
bool read_excess(int watched, Verdict& verdict);

// Lines of a table such as /proc/locks, no further than one more than `most`.
std::uint64_t count_lines(int fd, std::uint64_t most);

}  // namespace pctx
