// The other end of the filter: refused calls come here, are written down once per kind, and answered. One kind of call
// may be granted instead: mmap() and filters of the guest's own, within bounds that only a supervisor can keep.
#pragma once

#include <linux/seccomp.h>

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "box/text_reader.h"
#include "plan/plan.h"
#include "plan/refusal.h"

namespace pctx {

struct Denial {
  std::string syscall;
  std::string detail;  // what was asked for, where that can be told: a family, a request, a path
  std::string answer;  // errno's name
  std::string reason;  // why, and what to do about it
  std::uint64_t count = 1;
};

// When each call of a box is answered: so many at once, then one per millisecond. A flood costs the guest, not us, and
// no other guest.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kStep{1};
  static constexpr unsigned kAtOnce = 512;

  Clock::time_point turn(Clock::time_point now) { return last_ = std::max(last_, now - kAtOnce * kStep) + kStep; }

 private:
  Clock::time_point last_{};
};

// What one box was refused: each kind once, and no more kinds than a report should hold. And what it was granted.
class DenialBook {
 public:
  static constexpr std::size_t kMaxKinds = 64;
  static constexpr std::size_t kMaxOfCall = 8;  // or one call with ever new paths would keep the others out

  void add(Denial refused);
  // Writes it down if all that was granted stays within the allowance.
  bool grant_shared(std::uint64_t bytes, std::uint64_t allowance);
  bool grant_filter() { return filters_ < kMostFilters && ++filters_ > 0; }
  std::uint64_t shared() const { return shared_; }  // memory that was granted, see shared_allowance()
  const std::vector<Denial>& kinds() const { return kinds_; }
  // Refusals of kinds that came when it was full, or full of their call; and whose they were.
  std::uint64_t left_out() const { return left_out_; }
  const std::map<std::string, std::uint64_t>& left_out_of() const { return left_out_of_; }
  Pace& pace() { return pace_; }

 private:
  std::vector<Denial> kinds_;
  std::uint64_t left_out_ = 0;
  std::map<std::string, std::uint64_t> left_out_of_;  // by call; of no more calls than kMaxKinds
  std::uint64_t shared_ = 0;
  unsigned filters_ = 0;
  Pace pace_;
};

class DenialLog {
 public:
  using Clock = std::chrono::steady_clock;

  // The plan says what is answered; it must outlive us.
  void listen(Fd listener, const Plan& plan) {
    listener_ = std::move(listener);
    plan_ = &plan;
  }
  // Several boxes behind one listener: where the refusal of a process is written down; nullptr: nowhere.
  using BookOf = std::function<DenialBook*(pid_t)>;
  void share(BookOf book_of) { book_of_ = std::move(book_of); }
  // -1 when there is nothing to wait for, or while a flood of calls that are broken off is being slowed down.
  int poll_fd(Clock::time_point now) const { return now < not_before_ ? -1 : listener_.get(); }
  bool serve(Clock::time_point now);                      // the next call; false: nothing more will come
  unsigned readers() const { return reader_.started(); }  // each has a descriptor of its own
  int text_fd() const { return reader_.fd(); }            // readable: hear()
  void hear(Clock::time_point now);                       // the texts that tell what refused calls were about
  void answer_due(Clock::time_point now);                 // those whose turn has come
  // When there is something to do that `poll_fd` does not tell of.
  std::optional<Clock::time_point> wakes(Clock::time_point now) const;
  void close();
  const DenialBook& book() const { return book_; }

 private:
  struct Refused {
    seccomp_notif call;
    RefusalAnswer answer;
    Clock::time_point until;  // its text is waited for
  };

  DenialBook* book_of(const seccomp_notif& call);
  void refuse(const Refused& refused, const std::string& text, Clock::time_point now);
  void send(seccomp_notif_resp& response);

  Fd listener_;
  TextReader reader_;
  std::map<std::uint64_t, Refused> asked_;  // by the id of the call
  const Plan* plan_ = nullptr;
  // Refusals that wait for their turn: no more than there are threads. Where it would be more, signals or deaths break
  // calls off so that new ones can be made; then nobody is listened to before `not_before_`.
  std::multimap<Clock::time_point, seccomp_notif_resp> held_;
  Clock::time_point not_before_{};
  DenialBook book_;
  BookOf book_of_;
  Pace nobodys_;  // for what is written down nowhere
};

}  // namespace pctx
