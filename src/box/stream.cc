#include "box/stream.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

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
  if (clean) stream.filter_.emplace();
  return stream;
}

Stream Stream::input(int source, Fd sink) {
  Stream stream;
  stream.own_ = std::move(sink);
  (void)::fcntl(stream.own_.get(), F_SETFL, O_NONBLOCK);
  stream.source_ = source;
  stream.sink_ = stream.own_.get();
  stream.open_ = true;
  stream.to_guest_ = true;
  return stream;
}

// Back pressure: nothing is read before what was read is written.
int Stream::read_fd() const { return open_ && pending_.empty() ? source_ : -1; }
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
  else if (!sink_broken_)
    pending_ += filter_ ? filter_->feed(bytes) : std::string{bytes};
}

void Stream::end() {
  open_ = false;
  if (filter_ && !sink_broken_) pending_ += filter_->finish();
  if (to_guest_ && pending_.empty()) own_.reset();  // the guest sees the end of its input
  if (!to_guest_) own_.reset();
}

void Stream::on_readable() {
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(source_, buffer.data(), buffer.size());
  if (got > 0)
    take({buffer.data(), static_cast<std::size_t>(got)});
  else if (got == 0 || (errno != EAGAIN && errno != EINTR))
    end();
}

void Stream::on_writable() {
  // The sink is the caller's: it may not be switched to non-blocking for everyone who shares it. So never more than
  // PIPE_BUF, which a descriptor that poll() calls writable takes at once; and into a pipe, which our other stream or
  // another process may have filled since, with a write that cannot wait at all.
  const iovec data{pending_.data(), std::min<std::size_t>(pending_.size(), PIPE_BUF)};
  ssize_t put = sink_is_pipe_ ? ::pwritev2(sink_, &data, 1, -1, RWF_NOWAIT) : -1;
  if (!sink_is_pipe_ || (put < 0 && errno == EOPNOTSUPP)) put = ::write(sink_, data.iov_base, data.iov_len);
  if (put > 0)
    pending_.erase(0, static_cast<std::size_t>(put));
  else if (put < 0 && errno != EAGAIN && errno != EINTR) {
    // Nobody reads any more (`run … | head`): let the guest have its SIGPIPE.
    pending_.clear();
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

}  // namespace pctx
