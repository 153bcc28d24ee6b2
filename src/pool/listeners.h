// Where the refused calls of a pool's Workers come in. A Worker has its filter, and with it the listener, from the
// Zygote that forked it, and lives on when another Zygote has taken that one's place.
#pragma once

#include <list>
#include <utility>

#include "box/denials.h"
#include "sys/loop.h"

namespace pctx {

class DenialListeners {
 public:
  // The plan must outlive us.
  DenialListeners(sys::Loop& loop, const Plan& plan, DenialLog::BookOf book_of)
      : loop_(loop), plan_(plan), book_of_(std::move(book_of)) {}
  ~DenialListeners();
  DenialListeners(const DenialListeners&) = delete;
  DenialListeners& operator=(const DenialListeners&) = delete;

  void add(Fd listener);  // a new Zygote's; kept until the last process under its filter is gone

 private:
  struct Heard {
    DenialLog log;
    int fd = -1, text_fd = -1;
    unsigned readers = 0;
    sys::Loop::TimerId timer = 0;
  };
  using Place = std::list<Heard>::iterator;
  void await(Place at);
  void on_event(Place at, std::uint32_t events);

  sys::Loop& loop_;
  const Plan& plan_;
  DenialLog::BookOf book_of_;
  std::list<Heard> heard_;
};

}  // namespace pctx
