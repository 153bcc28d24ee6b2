#include "sys/loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>

namespace pctx::sys {

Result<Loop> Loop::make() {
  Loop loop;
  loop.epoll_ = Fd{::epoll_create1(EPOLL_CLOEXEC)};
  if (!loop.epoll_) return os_error("cannot make an event loop");
  return loop;
}

void Loop::watch(int fd, std::uint32_t events, Handler handler) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  handlers_[fd] = std::make_shared<Handler>(std::move(handler));
  // The kernel forgets closed descriptors by itself, and the number may be another one's now.
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0 && errno == EEXIST)
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Loop::forget(int fd) {
  if (fd < 0 || handlers_.erase(fd) == 0) return;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Loop::TimerId Loop::at(Clock::time_point when, std::function<void()> action) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::pair{when, id}, std::move(action));
  due_.emplace(id, when);
  return id;
}

void Loop::cancel(TimerId& timer) {
  if (const auto found = due_.find(timer); found != due_.end()) {
    timers_.erase({found->second, timer});
    due_.erase(found);
  }
  timer = 0;
}

int Loop::timeout() const {
  if (timers_.empty()) return -1;
  const auto left = timers_.begin()->first.first - Clock::now();
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(millis, 0, 3'600'000));
}

void Loop::run_timers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto action = std::move(timers_.begin()->second);
    due_.erase(timers_.begin()->first.second);
    timers_.erase(timers_.begin());
    action();
  }
}

Result<void> Loop::run() {
  running_ = true;
  std::array<epoll_event, 64> events{};
  while (running_) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout());
    if (count < 0 && errno != EINTR) return os_error("cannot wait for events");
    for (int i = 0; i < count; ++i) {
      // An earlier handler of this round may have forgotten the descriptor; one that runs may forget itself.
      const auto found = handlers_.find(events[static_cast<std::size_t>(i)].data.fd);
      if (found == handlers_.end()) continue;
      const std::shared_ptr<Handler> handler = found->second;
      (*handler)(events[static_cast<std::size_t>(i)].events);
    }
    run_timers();
  }
  return {};
}

}  // namespace pctx::sys
