#include "sys/loop.h"

#include <poll.h>
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

bool Loop::enter(int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return true;
  // The kernel forgets closed descriptors by itself, and the number may be another one's now.
  return errno == EEXIST && ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0;
}

void Loop::watch(int fd, std::uint32_t events, Handler handler) {
  handlers_[fd] = std::make_shared<Handler>(std::move(handler));
  unwatched_.erase(fd);
  if (!enter(fd, events) && errno != EBADF) unwatched_[fd] = events;
}

void Loop::forget(int fd) {
  if (fd < 0 || handlers_.erase(fd) == 0) return;
  unwatched_.erase(fd);
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
  constexpr std::int64_t kLongest = 3'600'000, kBetweenQuestions = 10;
  const std::int64_t longest = unwatched_.empty() ? kLongest : kBetweenQuestions;
  if (timers_.empty()) return unwatched_.empty() ? -1 : static_cast<int>(longest);
  const auto left = timers_.begin()->first.first - Clock::now();
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(millis, 0, longest));
}

void Loop::call(int fd, std::uint32_t events) {
  // An earlier handler of this round may have forgotten the descriptor; one that runs may forget itself.
  const auto found = handlers_.find(fd);
  if (found == handlers_.end()) return;
  const std::shared_ptr<Handler> handler = found->second;
  (*handler)(events);
}

void Loop::ask_unwatched() {
  const auto asked = unwatched_;  // handlers forget
  for (const auto& [fd, events] : asked) {
    if (!unwatched_.contains(fd)) continue;
    if (enter(fd, events)) {
      unwatched_.erase(fd);
      continue;
    }
    pollfd one{fd, static_cast<short>(events & (EPOLLIN | EPOLLOUT | EPOLLRDHUP)), 0};
    if (::poll(&one, 1, 0) > 0) call(fd, static_cast<std::uint32_t>(one.revents));
  }
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
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      call(event.data.fd, event.events);
    }
    if (!unwatched_.empty()) ask_unwatched();
    run_timers();
  }
  return {};
}

}  // namespace pctx::sys
