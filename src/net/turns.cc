#include "net/turns.h"

namespace pctx::net {

Turns::Ticket Turns::wait(Share& share, std::function<void()> go) {
  waiting_.emplace(next_, Waiting{&share, std::move(go)});
  arm();
  return next_++;
}

void Turns::cancel(Ticket& ticket) {
  waiting_.erase(ticket);
  ticket = 0;
}

void Turns::arm() {
  if (timer_ != 0 || waiting_.empty()) return;
  timer_ = loop_.after({}, [this] {
    timer_ = 0;
    next();
  });
}

void Turns::next() {
  ++round_;
  // Who comes while this goes on stands behind everybody, and waits for the round after it.
  const Ticket newcomers = next_;
  for (auto each = waiting_.begin(); each != waiting_.end() && each->first < newcomers;) {
    if (left(*each->second.share) == 0) {  // others of its box were before it; it keeps its place
      ++each;
      continue;
    }
    const Ticket ticket = each->first;
    const std::function<void()> go = std::move(each->second.go);
    waiting_.erase(each);
    go();
    each = waiting_.upper_bound(ticket);  // what was called may have cancelled any
  }
  arm();
}

}  // namespace pctx::net
