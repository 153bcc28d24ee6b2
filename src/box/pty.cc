#include "box/pty.h"

#include <sys/ioctl.h>

namespace pctx {

Result<RawTerminal> RawTerminal::enter(int terminal) {
  RawTerminal raw;
  if (::tcgetattr(terminal, &raw.before_) != 0)
    return usage_error("--tty needs a terminal on standard input",
                       "leave --tty out when input comes from a file or pipe");
  termios mode = raw.before_;
  ::cfmakeraw(&mode);
  if (::tcsetattr(terminal, TCSANOW, &mode) != 0) return os_error("cannot switch the terminal to raw mode");
  raw.terminal_ = terminal;
  return raw;
}

RawTerminal::RawTerminal(RawTerminal&& other) noexcept
    : terminal_(std::exchange(other.terminal_, -1)), before_(other.before_) {}

RawTerminal& RawTerminal::operator=(RawTerminal&& other) noexcept {
  leave();
  terminal_ = std::exchange(other.terminal_, -1);
  before_ = other.before_;
  return *this;
}

void RawTerminal::leave() noexcept {
  if (terminal_ >= 0) (void)::tcsetattr(terminal_, TCSADRAIN, &before_);
  terminal_ = -1;
}

void copy_window_size(int from_terminal, int to_master) {
  winsize size{};
  if (::ioctl(from_terminal, TIOCGWINSZ, &size) == 0) (void)::ioctl(to_master, TIOCSWINSZ, &size);
}

}  // namespace pctx
