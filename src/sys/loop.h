// One thread that waits for everything: descriptors and timers. Handlers run to completion and never wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace pctx::sys {

class Loop {
 public:
  using Clock = std::chrono::steady_clock;
  using Handler = std::function<void(std::uint32_t events)>;  // EPOLL*
  using TimerId = std::uint64_t;

  static Result<Loop> make();

  // Until `forget`, which must come before the descriptor is closed.
  void watch(int fd, std::uint32_t events, Handler handler);
  void forget(int fd);

  TimerId at(Clock::time_point when, std::function<void()> action);
  TimerId after(Clock::duration delay, std::function<void()> action) {
    return at(Clock::now() + delay, std::move(action));
  }
  void cancel(TimerId& timer);  // 0, and already run, are fine

  Result<void> run();  // until stop()
  void stop() { running_ = false; }

 private:
  bool enter(int fd, std::uint32_t events);
  int timeout() const;
  void run_timers();
  void call(int fd, std::uint32_t events);
  void ask_unwatched();

  Fd epoll_;
  bool running_ = false;
  std::map<int, std::shared_ptr<Handler>> handlers_;
  // The kernel counts watches per user, and guests with our uid may have used them up: asked one by one until it takes
  // them.
  std::map<int, std::uint32_t> unwatched_;
  std::map<std::pair<Clock::time_point, TimerId>, std::function<void()>> timers_;
  std::map<TimerId, Clock::time_point> due_;
  TimerId next_timer_ = 1;
};

}  // namespace pctx::sys
