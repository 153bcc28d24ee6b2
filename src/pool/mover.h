// Moves processes into cgroups of version 2, where the kernel stops for it: 10 ms and more for each, during which the
// Broker has callers to serve. So a process of its own does it, one after the other, and tells.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>

#include "base/fd.h"
#include "sys/loop.h"

namespace pctx {

class Mover {
 public:
  using Ticket = std::uint64_t;

  explicit Mover(sys::Loop& loop) : loop_(loop) {}
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // `done` is called from the loop, with 0 or errno.
  Ticket move(int directory, pid_t pid, std::function<void(int error)> done);
  void forget(Ticket& ticket);  // nobody is told; 0, and already done, are fine

 private:
  void start();
  void stop();
  void on_answer();

  sys::Loop& loop_;
  Fd socket_;
  pid_t pid_ = -1;
  Ticket last_ = 0;
  std::map<Ticket, std::function<void(int)>> waiting_;
};

}  // namespace pctx
