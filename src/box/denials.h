// The other end of the filter: refused calls come here, are written down once per kind, and answered. One kind of call
// may be granted instead: mmap(), within bounds that only a supervisor can keep.
#pragma once

#include <linux/seccomp.h>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "plan/plan.h"

namespace pctx {

struct Denial {
  std::string syscall;
  std::string detail;  // what was asked for, where that can be told: a family, a request, a path
  std::string answer;  // errno's name
  std::string reason;  // why, and what to do about it
  std::uint64_t count = 1;
};

// What one box was refused: each kind once, and no more kinds than a report should hold. And what it was granted.
class DenialBook {
 public:
  static constexpr std::size_t kMaxKinds = 64;

  void add(Denial refused);
  // Writes it down if all that was granted stays within the allowance.
  bool grant_shared(std::uint64_t bytes, std::uint64_t allowance);
  std::uint64_t shared() const { return shared_; }  // memory that was granted, see shared_allowance()
  const std::vector<Denial>& kinds() const { return kinds_; }
  std::uint64_t left_out() const { return left_out_; }  // refusals of kinds that came when it was full

 private:
  std::vector<Denial> kinds_;
  std::uint64_t left_out_ = 0;
  std::uint64_t shared_ = 0;
};

class DenialLog {
 public:
  // The plan says what is answered; it must outlive us.
  void listen(Fd listener, const Plan& plan) {
    listener_ = std::move(listener);
    plan_ = &plan;
  }
  // Several boxes behind one listener: where the refusal of a process is written down; nullptr: nowhere.
  using BookOf = std::function<DenialBook*(pid_t)>;
  void share(BookOf book_of) { book_of_ = std::move(book_of); }
  // -1 when there is nothing to wait for, or while a flood of refusals is being slowed down.
  int poll_fd(std::chrono::steady_clock::time_point now) const { return slowed(now) ? -1 : listener_.get(); }
  bool slowed(std::chrono::steady_clock::time_point now) const { return listener_ && now < not_before_; }
  void serve(std::chrono::steady_clock::time_point now);
  void close() { listener_.reset(); }
  const DenialBook& book() const { return book_; }

 private:
  Fd listener_;
  const Plan* plan_ = nullptr;
  std::uint64_t served_ = 0;
  std::chrono::steady_clock::time_point not_before_{};
  DenialBook book_;
  BookOf book_of_;
};

}  // namespace pctx
