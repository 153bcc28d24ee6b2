// The other end of the filter: refused calls come here, are written down once per kind, and answered.
#pragma once

#include <linux/seccomp.h>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
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
  // Several boxes behind one listener: where the refusal of a process is written down; nullptr: nowhere.
  using BookOf = std::function<std::vector<Denial>*(pid_t)>;
  void share(BookOf book_of) { book_of_ = std::move(book_of); }
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
  BookOf book_of_;
};

}  // namespace pctx
