// How the guest ended. Never mixed with Error, which is how *we* failed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "policy/policy.h"

namespace pctx {

enum class OutcomeKind { exited, signaled, timed_out, out_of_memory, output_limit, denied };

struct Outcome {
  OutcomeKind kind = OutcomeKind::exited;
  int exit_code = 0;     // exited
  int signal = 0;        // signaled, denied
  std::string limit;     // the option whose limit ended it, without dashes: "memory", "timeout", "cpu-time", …
  std::string sentence;  // for people, empty when the guest simply exited

  // What `pctx-sandbox run` exits with: as a shell, and 124 for time as timeout(1) does.
  int exit_status() const;
  // Whether a person needs the sentence: the status does not tell why it ended.
  bool is_to_be_told() const;
};

const char* name(OutcomeKind kind);

// In one box. Everyday programs hold a handful; what so many take is 2 MiB of the kernel's.
inline constexpr std::uint64_t kMostLocks = 10'000;

struct Verdict {
  int wait_status = 0;         // of the guest's main process
  bool timed_out = false;      // we killed it
  bool cpu_time_over = false;  // we killed it
  bool output_over = false;    // we killed it
  bool memory_over = false;    // we killed it for memory
  bool oom_kill = false;       // the kernel killed a process of it for memory
  bool locks_over = false;     // we killed it for file locks, memory that nobody charges
  bool pids_over = false;      // we killed it
  // For which calls the filter sends SIGSYS, in words; empty without a filter. The wait status does not carry si_code:
  // a guest that sends itself SIGSYS looks the same, and can only make its own ending look worse.
  std::string killed_calls;
};

// Pure: what was seen, to what it means.
Outcome judge(const Verdict& verdict, const Limits& limits);

// Of a box whose first process has ended and has not told how the guest did. Nothing if it was killed, by somebody
// outside or by the kernel for memory: then so was the guest. It never ends otherwise by itself, and nobody may take
// that for an ending of the guest's.
std::optional<Error> untold_end(int init_status);

}  // namespace pctx
