// The other end of the filter: refused calls come here, are written down once per kind, and answered.
#pragma once

#include <linux/seccomp.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"

namespace pctx {

struct Denial {
  std::string syscall;
  std::string detail;  // what was asked for, where that can be told: a family, a request, a path
  std::string answer;  // errno's name
  std::uint64_t count = 1;
};

class DenialLog {
 public:
  // `profile`: the filter is a user's, whose refusals that come here all mean EPERM.
  void listen(Fd listener, bool profile) {
    listener_ = std::move(listener);
    profile_ = profile;
  }
  // -1 when there is nothing to wait for, or while a flood of refusals is being slowed down.
  int poll_fd(std::chrono::steady_clock::time_point now) const { return slowed(now) ? -1 : listener_.get(); }
  bool slowed(std::chrono::steady_clock::time_point now) const { return listener_ && now < not_before_; }
  void serve(std::chrono::steady_clock::time_point now);
  void close() { listener_.reset(); }
  const std::vector<Denial>& denials() const { return denials_; }

 private:
  void record(const seccomp_notif& call, int answer);

  Fd listener_;
  bool profile_ = false;
  std::uint64_t served_ = 0;
  std::chrono::steady_clock::time_point not_before_{};
  std::vector<Denial> denials_;
};

}  // namespace pctx
