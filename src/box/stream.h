// One direction of the guest's standard streams: bytes from a descriptor to a descriptor or into memory, bounded, never
// blocking the supervisor.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "box/terminal.h"

namespace pctx {

// The bytes that stdout and stderr may still take together.
struct OutputBudget {
  std::uint64_t left = 0;
  bool exceeded = false;
};

class Stream {
 public:
  Stream() = default;
  // From the guest to the caller's `sink` (borrowed), or, with -1, into memory. `clean`: the sink is a terminal.
  static Stream output(Fd source, int sink, OutputBudget* budget, bool clean);
  // From the caller's `source` (borrowed) to the guest. `other_end`: the guest's end of `sink`, if that is a pipe.
  static Stream input(int source, Fd sink, Fd other_end = {});

  // What to wait for, for poll(): -1 where there is nothing.
  int read_fd() const;
  int write_fd() const;
  void on_readable();
  void on_writable();
  bool finished() const { return !open_ && pending_.empty(); }
  // After the guest is dead: takes what is left in the pipe, and writes all of it, waiting if it must; gives up when
  // `interrupt` becomes readable.
  void drain(int interrupt);

  // After the guest is dead: what it has not read of a file is left to whoever reads on there, as in a shell's loop.
  void give_back();

  std::uint64_t bytes() const { return bytes_; }
  const std::string& captured() const { return captured_; }
  // Another job has the terminal that we read from. Nobody says when it is ours again: bash sends no SIGCONT to a job
  // that was never stopped.
  bool in_background() const { return in_background_; }
  void look_at_terminal();
  // Why the source gave no more, 0 if that was its end.
  int source_error() const { return source_error_; }
  // Why the sink took no more, 0 if it did or if it was a reader that has gone.
  int sink_error() const { return sink_error_; }

 private:
  void take(std::string_view bytes);
  void charge_for_nothing();
  void stop_reading(int error);  // 0: at its end
  bool flush(int interrupt);
  void end();
  ssize_t put(std::string_view bytes);

  Fd own_;        // the box's end
  Fd other_end_;  // of a file as input: the kernel tells there what the guest has left in the pipe
  int source_ = -1;
  int sink_ = -1;
  bool open_ = false;  // the source may still give something
  bool to_guest_ = false;
  bool sink_broken_ = false;
  bool in_background_ = false;  // what is typed is for somebody else
  int source_error_ = 0, sink_error_ = 0;
  bool sink_is_pipe_ = false, sink_is_readable_only_ = false;
  bool sink_may_wait_ = false;  // a pipe or a terminal that was not opened once more yet
  Fd own_sink_;                 // opened once more: there a write never waits
  OutputBudget* budget_ = nullptr;
  std::optional<TerminalFilter> filter_;
  std::string pending_, captured_;
  std::uint64_t bytes_ = 0;
};

}  // namespace pctx
