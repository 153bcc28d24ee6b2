// Looks at what boxes hold in the kernel without any memory cgroup counting it: buffers of sockets on cgroup v1,
// connections that nobody has accepted, sockets that outlived their owner, file locks; and where there is no cgroup,
// mappings, buffers of open files of /proc, and what processes that share memory have together. A process of its own
// looks, because reading /proc/locks makes the kernel wait for 8 ms and more, a list of 65,530 mappings takes it 27 ms,
// and sixty processes that share 800 MiB a second, during which a supervisor relays output and a Broker has callers to
// serve.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/fd.h"
#include "base/result.h"
#include "base/units.h"
#include "box/outcome.h"
#include "box/watchdog.h"
#include "plan/plan.h"

namespace pctx {

// Short runs are not looked at: whoever fills the kernel's memory needs longer.
inline constexpr Millis kFirstLook{50};

struct LookoutProgress;

class Lookout {
 public:
  struct Probes {
    int proc;   // the box's /proc
    int locks;  // the list of locks there
    int diag;   // a NETLINK_SOCK_DIAG socket of its network; -1: there is none
  };

  struct Watch {
    Fd heard;             // readable when there is something to hear(); watching ends when it is closed
    unsigned number = 0;  // of this box
  };

  Lookout() = default;
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  Result<Watch> watch(const Plan& plan, const Probes& probes);
  // To be asked at every look: whether boxes in doubt wait, of which this may be one, because a process of this one
  // lets nobody look at its memory.
  bool is_held_up_by(unsigned number, bool in_doubt);
  void release() noexcept;  // no more looks; without waiting for the process to be gone

 private:
  Result<void> start();
  void stop() noexcept;

  Fd orders_;
  pid_t pid_ = -1;
  LookoutProgress* progress_ = nullptr;  // shared with the process
  unsigned last_number_ = 0;
  std::int64_t stands_since_ = 0, doubted_at_ = 0;
  unsigned stood_ = 0;  // so many times
};

enum class Heard {
  nothing_more,  // nobody watches any longer
  figures,       // the meter has them
  excess,        // the verdict says of what
};
// Of a descriptor of watch(): exactly, and as soon as its share of the time allows.
void ask_to_look(int watched);
// What a readable descriptor of watch() says.
Heard hear(int watched, TreeMeter& meter, Verdict& verdict);

// The locks in a table such as /proc/locks whose owner is in its pid namespace, no further than one more than `most`.
// Those of open files and of other machines have a negative owner, and every namespace sees them: a guest has none.
std::uint64_t count_locks(int fd, std::uint64_t most);

}  // namespace pctx
