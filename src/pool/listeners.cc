#include "pool/listeners.h"

#include <sys/epoll.h>

namespace pctx {

using Clock = sys::Loop::Clock;

DenialListeners::~DenialListeners() {
  for (Heard& each : heard_) {
    loop_.cancel(each.timer);
    loop_.forget(each.fd);
    loop_.forget(each.text_fd);
  }
}

void DenialListeners::add(Fd listener) {
  const Place at = heard_.emplace(heard_.end());
  at->log.listen(std::move(listener), plan_);
  at->log.share(book_of_);
  await(at);
}

void DenialListeners::on_event(Place at, std::uint32_t events) {
  if ((events & EPOLLIN) != 0 && at->log.serve(Clock::now())) return await(at);
  loop_.cancel(at->timer);
  loop_.forget(at->fd);
  loop_.forget(at->text_fd);
  at->log.close();
  heard_.erase(at);
}

// The next call, and the turn of those that wait for their answer.
void DenialListeners::await(Place at) {
  const auto now = Clock::now();
  if (const int fd = at->log.poll_fd(now); fd != at->fd) {
    loop_.forget(std::exchange(at->fd, fd));
    if (fd >= 0) loop_.watch(fd, EPOLLIN, [this, at](std::uint32_t events) { on_event(at, events); });
  }
  if (const int fd = at->log.text_fd(); fd != at->text_fd || at->readers != at->log.readers()) {
    at->readers = at->log.readers();
    loop_.forget(std::exchange(at->text_fd, fd));
    if (fd >= 0)
      loop_.watch(fd, EPOLLIN, [this, at](std::uint32_t) {
        at->log.hear(Clock::now());
        await(at);
      });
  }
  loop_.cancel(at->timer);
  const auto wakes = at->log.wakes(now);
  if (!wakes) return;
  at->timer = loop_.at(*wakes, [this, at] {
    at->log.answer_due(Clock::now());
    await(at);
  });
}

}  // namespace pctx
