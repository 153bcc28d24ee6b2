// The caller's terminal while a guest with a pty of its own is attached to it: raw mode, window size, and back again
// whatever happens.
#pragma once

#include <termios.h>

#include "base/fd.h"
#include "base/result.h"

namespace pctx {

class RawTerminal {
 public:
  RawTerminal() = default;
  static Result<RawTerminal> enter(int terminal);
  RawTerminal(RawTerminal&& other) noexcept;
  RawTerminal& operator=(RawTerminal&& other) noexcept;
  ~RawTerminal() { leave(); }
  void leave() noexcept;

 private:
  void start_keeper();
  int terminal_ = -1;
  termios before_{};
  // A process that puts the terminal back if this one is killed: nothing else could.
  pid_t keeper_ = -1;
  Fd lifeline_;
};

void copy_window_size(int from_terminal, int to_master);

}  // namespace pctx
