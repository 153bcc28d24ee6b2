// Whose turn it is to move bytes: in one round of the loop every box may move so much, and no more. One that has much
// to move waits for the next round, behind everybody whose turn has not come yet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>

#include "base/units.h"
#include "sys/loop.h"

namespace pctx::net {

class Turns {
 public:
  static constexpr std::uint64_t kRound = 512_KiB;  // bytes of one box: a quarter of a millisecond
  static constexpr std::uint64_t kLeast = 4_KiB;    // what a move costs at least

  // Of one box.
  struct Share {
    std::uint64_t round = 0, left = kRound;
  };
  using Ticket = std::uint64_t;

  explicit Turns(sys::Loop& loop) : loop_(loop) {}
  ~Turns() { loop_.cancel(timer_); }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // How much the box may still move in this round.
  std::uint64_t left(Share& share) const {
    if (share.round != round_) share = {round_, kRound};
    return share.left;
  }
  void spend(Share& share, std::uint64_t bytes) const {
    share.left = left(share) - std::min(left(share), std::max(bytes, kLeast));
  }
  // Calls `go` in a later round in which the box has something left. `share` lives until then, or the ticket is given
  // back.
  Ticket wait(Share& share, std::function<void()> go);
  void cancel(Ticket& ticket);
  // Starts the next round; the loop does, once per turn of its own, while somebody waits.
  void next();

 private:
  struct Waiting {
    Share* share;
    std::function<void()> go;
  };
  void arm();

  sys::Loop& loop_;
  std::uint64_t round_ = 0;
  std::map<Ticket, Waiting> waiting_;  // in the order in which they came
  sys::Loop::TimerId timer_ = 0;
  Ticket next_ = 1;
};

}  // namespace pctx::net
