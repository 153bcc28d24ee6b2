#include "box/stream.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

namespace pctx {

Stream Stream::output(Fd source, int sink, OutputBudget* budget, bool clean) {
  Stream stream;
  stream.own_ = std::move(source);
  (void)::fcntl(stream.own_.get(), F_SETFL, O_NONBLOCK);  // our end of a pipe that only we and the guest have
  stream.source_ = stream.own_.get();
  stream.sink_ = sink;
  stream.open_ = true;
  stream.budget_ = budget;
  struct stat status {};
  stream.sink_is_pipe_ = sink >= 0 && ::fstat(sink, &status) == 0 && S_ISFIFO(status.st_mode);
  stream.sink_is_readable_only_ = sink >= 0 && (::fcntl(sink, F_GETFL) & O_ACCMODE) == O_RDONLY;
  stream.sink_may_wait_ = stream.sink_is_pipe_ || (S_ISCHR(status.st_mode) && ::isatty(sink) == 1);
  if (clean) stream.filter_.emplace();
  return stream;
}

Stream Stream::input(int source, Fd sink, Fd other_end) {
  Stream stream;
  struct stat status {};
  if (::fstat(source, &status) == 0 && S_ISREG(status.st_mode)) stream.other_end_ = std::move(other_end);
  stream.own_ = std::move(sink);
  (void)::fcntl(stream.own_.get(), F_SETFL, O_NONBLOCK);
  stream.source_ = source;
  stream.sink_ = stream.own_.get();
  stream.open_ = true;
  stream.to_guest_ = true;
  return stream;
}

// Back pressure: nothing is read before what was read is written.
int Stream::read_fd() const { return open_ && !in_background_ && pending_.empty() ? source_ : -1; }
int Stream::write_fd() const { return pending_.empty() ? -1 : sink_; }

void Stream::take(std::string_view bytes) {
  if (budget_ != nullptr) {
    const std::size_t allowed = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), budget_->left));
    budget_->left -= allowed;
    if (allowed < bytes.size()) budget_->exceeded = true;
    bytes = bytes.substr(0, allowed);
  }
  bytes_ += bytes.size();
  if (!to_guest_ && sink_ < 0)
    captured_.append(bytes);
  else if (sink_is_readable_only_ && !bytes.empty())
    sink_error_ = EBADF;  // the caller closed it: no reason for the guest to die in its work
  else if (!sink_broken_)
    pending_ += filter_ ? filter_->feed(bytes) : std::string{bytes};
}

void Stream::end() {
  open_ = false;
  if (filter_ && !sink_broken_) pending_ += filter_->finish();
  if (to_guest_ && pending_.empty()) own_.reset();  // the guest sees the end of its input
  if (!to_guest_) own_.reset();
}

// Something was there when we were woken up, and nobody but the guest can have taken it back: it would keep us awake
// without end.
void Stream::charge_for_nothing() {
  constexpr std::uint64_t kWakeUp = 64;
  budget_->exceeded |= budget_->left < kWakeUp;
  budget_->left -= std::min(budget_->left, kWakeUp);
}

void Stream::on_readable() {
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(source_, buffer.data(), buffer.size());
  if (got > 0)
    take({buffer.data(), static_cast<std::size_t>(got)});
  else if (got == 0 || (errno != EAGAIN && errno != EINTR))
    stop_reading(got < 0 ? errno : 0);
  else if (budget_ != nullptr)
    charge_for_nothing();
}

void Stream::look_at_terminal() {
  const pid_t in_front = ::tcgetpgrp(source_);
  in_background_ = in_front >= 0 && in_front != ::getpgrp();
}

void Stream::stop_reading(int error) {
  struct stat status {};
  const bool terminal = error == EIO && ::fstat(source_, &status) == 0 && S_ISCHR(status.st_mode);
  if (terminal && to_guest_) look_at_terminal();
  if (in_background_) return;
  // nohup leaves an input that is open for writing only, and a terminal may have gone: nothing is missed of either.
  if (to_guest_ && error != EBADF && !terminal) source_error_ = error;
  end();
}

// The caller's sink may not be switched to non-blocking for everyone who shares it, and poll() does not promise that a
// write will not wait: a terminal is writable with room for one byte, and our other stream or another process may have
// filled a pipe since. A supervisor that waits there keeps no time limit, so it opens the sink once more for itself.
ssize_t Stream::put(std::string_view bytes) {
  if (std::exchange(sink_may_wait_, false))
    own_sink_ =
        Fd{::open(fmt::format("/proc/self/fd/{}", sink_).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  if (own_sink_) {
    const ssize_t written = ::write(own_sink_.get(), bytes.data(), bytes.size());
    // poll() called it writable all the same (a terminal with too little room for a line's end): do not spin.
    if (written < 0 && errno == EAGAIN) {
      ::usleep(1000);
      errno = EAGAIN;
    }
    return written;
  }
  // A pipe that is somebody else's. It knows RWF_NOWAIT since Linux 6.4; before, and for all other kinds of sinks, what
  // poll() says right now is the best that is left.
  if (sink_is_pipe_) {
    const iovec data{const_cast<char*>(bytes.data()), bytes.size()};
    const ssize_t written = ::pwritev2(sink_, &data, 1, -1, RWF_NOWAIT);
    if (written >= 0 || errno != EOPNOTSUPP) return written;
  }
  pollfd now{sink_, POLLOUT, 0};
  if (::poll(&now, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(sink_, bytes.data(), bytes.size());
}

void Stream::on_writable() {
  const std::string_view next = std::string_view{pending_}.substr(0, PIPE_BUF);
  const ssize_t put = to_guest_ ? ::write(sink_, next.data(), next.size()) : this->put(next);
  if (put > 0)
    pending_.erase(0, static_cast<std::size_t>(put));
  else if (put < 0 && errno != EAGAIN && errno != EINTR) {
    if (!to_guest_ && errno != EPIPE) sink_error_ = errno;
    pending_.clear();
    // Nobody reads any more (`run … | head`): let the guest have its SIGPIPE.
    sink_broken_ = true;
    end();
  }
  if (!open_ && to_guest_ && pending_.empty()) own_.reset();
}

// False when interrupted: the reader does not read, and somebody wants us to end.
bool Stream::flush(int interrupt) {
  while (!pending_.empty()) {
    std::array<pollfd, 2> ready{{{sink_, POLLOUT, 0}, {interrupt, POLLIN, 0}}};
    if (::poll(ready.data(), ready.size(), -1) < 0) continue;
    if (ready[1].revents != 0) return false;
    on_writable();
  }
  return true;
}

void Stream::drain(int interrupt) {
  if (to_guest_) return;
  bool going = flush(interrupt);
  while (going && open_ && !(budget_ != nullptr && budget_->exceeded)) {
    pollfd ready{source_, POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    on_readable();
    going = flush(interrupt);
  }
  if (open_) end();
  if (!going || !flush(interrupt)) pending_.clear();
}

void Stream::give_back() {
  int in_pipe = 0;
  if (!other_end_ || ::ioctl(other_end_.get(), FIONREAD, &in_pipe) != 0) return;
  // The guest may have written into its own input: never more than was read.
  const std::uint64_t left = std::min<std::uint64_t>(pending_.size() + static_cast<std::size_t>(in_pipe), bytes_);
  if (left > 0) (void)::lseek(source_, -static_cast<off_t>(left), SEEK_CUR);
}

}  // namespace pctx
