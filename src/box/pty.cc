#include "box/pty.h"

#include <sys/ioctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "sys/files.h"

namespace pctx {

Result<RawTerminal> RawTerminal::enter(int terminal) {
  RawTerminal raw;
  if (::tcgetattr(terminal, &raw.before_) != 0)
    return usage_error("--tty needs a terminal on standard input",
                       "leave --tty out when input comes from a file or pipe");
  raw.terminal_ = terminal;
  raw.start_keeper();
  termios mode = raw.before_;
  ::cfmakeraw(&mode);
  if (::tcsetattr(terminal, TCSANOW, &mode) != 0) return os_error("cannot switch the terminal to raw mode");
  return raw;
}

void RawTerminal::start_keeper() {
  auto pipe = sys::make_pipe();
  if (!pipe) return;
  // Blocked before, blocked in it for ever: what ends our process group must not end it.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  keeper_ = ::fork();
  if (keeper_ == 0) {
    // In a session of its own: a terminal that is not ours to control never stops us for changing it.
    (void)::setsid();
    std::array<int, 2> kept{terminal_, pipe->read_end.get()};
    std::sort(kept.begin(), kept.end());
    sys::close_all_but(kept);
    char byte = 0;
    ssize_t told = 0;
    while ((told = ::read(pipe->read_end.get(), &byte, 1)) < 0 && errno == EINTR) {
    }
    if (told == 0) (void)::tcsetattr(terminal_, TCSANOW, &before_);
    ::_exit(0);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  lifeline_ = std::move(pipe->write_end);
}

RawTerminal::RawTerminal(RawTerminal&& other) noexcept
    : terminal_(std::exchange(other.terminal_, -1)),
      before_(other.before_),
      keeper_(std::exchange(other.keeper_, -1)),
      lifeline_(std::move(other.lifeline_)) {}

RawTerminal& RawTerminal::operator=(RawTerminal&& other) noexcept {
  leave();
  terminal_ = std::exchange(other.terminal_, -1);
  before_ = other.before_;
  keeper_ = std::exchange(other.keeper_, -1);
  lifeline_ = std::move(other.lifeline_);
  return *this;
}

void RawTerminal::leave() noexcept {
  if (terminal_ >= 0) (void)::tcsetattr(terminal_, TCSADRAIN, &before_);
  terminal_ = -1;
  if (keeper_ <= 0) return;
  // Told that there is nothing left to do; it would put the same back.
  (void)!::write(lifeline_.get(), "x", 1);
  lifeline_.reset();
  while (::waitpid(keeper_, nullptr, 0) < 0 && errno == EINTR) {
  }
  keeper_ = -1;
}

void copy_window_size(int from_terminal, int to_master) {
  winsize size{};
  if (::ioctl(from_terminal, TIOCGWINSZ, &size) == 0) (void)::ioctl(to_master, TIOCSWINSZ, &size);
}

}  // namespace pctx
