// Looks at Workers before they are lent. The kernel makes whoever looks wait while a Worker changes its mappings, or is
// about to become another program, and for how long is up to what it has imported. A pool has an inspector of its own:
// no other pool waits, too.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "pool/errands.h"

namespace pctx {

class Inspector {
 public:
  struct Suspect {
    pid_t worker, init, zygote;
    std::vector<int> given;  // descriptors of ours that it may have
    std::string workdir;
  };

  explicit Inspector(sys::Loop& loop);

  // inspect_worker(); `done` is called from the loop.
  Errands::Ticket inspect(const Suspect& suspect, std::function<void(const Result<void>&)> done);
  void forget(Errands::Ticket& ticket) { errands_.forget(ticket); }

 private:
  Errands errands_;
};

}  // namespace pctx
