// Moves processes into cgroups of version 2, where the kernel stops for it: 10 ms and more for each.
#pragma once

#include <sys/types.h>

#include <functional>

#include "pool/errands.h"

namespace pctx {

class Mover {
 public:
  explicit Mover(sys::Loop& loop);

  // `done` is called from the loop, with 0 or errno.
  Errands::Ticket move(int directory, pid_t pid, std::function<void(int error)> done);
  void forget(Errands::Ticket& ticket) { errands_.forget(ticket); }

 private:
  Errands errands_;
};

}  // namespace pctx
