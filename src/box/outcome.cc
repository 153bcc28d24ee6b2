#include "box/outcome.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include <fmt/format.h>

namespace pctx {

namespace {

std::string signal_name(int signal) {
  if (signal >= SIGRTMIN) return fmt::format("SIGRTMIN+{}", signal - SIGRTMIN);
  const char* const text = ::sigabbrev_np(signal);
  return fmt::format("SIG{}", text != nullptr ? text : "?");
}

}  // namespace

int Outcome::exit_status() const {
  switch (kind) {
    case OutcomeKind::exited:
      return exit_code;
    case OutcomeKind::signaled:
    case OutcomeKind::denied:
      return 128 + signal;
    case OutcomeKind::timed_out:
      return 124;
    case OutcomeKind::out_of_memory:
      return 128 + SIGKILL;
    case OutcomeKind::output_limit:
      return 128 + SIGXFSZ;
  }
  return 125;
}

bool Outcome::is_to_be_told() const {
  return !limit.empty() || (kind != OutcomeKind::exited && kind != OutcomeKind::signaled);
}

const char* name(OutcomeKind kind) {
  switch (kind) {
    case OutcomeKind::exited:
      return "exited";
    case OutcomeKind::signaled:
      return "signaled";
    case OutcomeKind::timed_out:
      return "timed_out";
    case OutcomeKind::out_of_memory:
      return "out_of_memory";
    case OutcomeKind::output_limit:
      return "output_limit";
    case OutcomeKind::denied:
      return "denied";
  }
  return "unknown";
}

Outcome judge(const Verdict& verdict, const Limits& limits) {
  const int status = verdict.wait_status;
  const auto stopped = [](OutcomeKind kind, std::string limit, std::string sentence) {
    return Outcome{kind, 0, SIGKILL, std::move(limit), std::move(sentence)};
  };
  // A guest that ended by itself before our kill arrived has ended by itself.
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (verdict.locks_over && killed)
    return stopped(OutcomeKind::out_of_memory, "",  // no option moves it
                   fmt::format("out of memory: more than {} file locks, which --memory cannot count; release some "
                               "before taking more",
                               kMostLocks));
  // Of what the kernel has killed the rest is killed as well. Whether it came to its end before depends on the load.
  if (verdict.oom_kill || (verdict.memory_over && (killed || !WIFEXITED(status))))
    return stopped(OutcomeKind::out_of_memory, "memory",
                   fmt::format("out of memory: limit {} (--memory)", format_size(limits.memory)));
  if (killed && verdict.timed_out)
    return stopped(OutcomeKind::timed_out, "timeout",
                   fmt::format("timed out: limit {} (--timeout)", format_duration(limits.timeout)));
  if ((killed && verdict.cpu_time_over) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU && limits.cpu_time))
    return stopped(
        OutcomeKind::timed_out, "cpu-time",
        fmt::format("CPU time used up: limit {} (--cpu-time)", format_duration(limits.cpu_time.value_or(Millis{0}))));
  if (verdict.output_over)
    return stopped(OutcomeKind::output_limit, "output",
                   fmt::format("too much output: limit {} (--output)", format_size(limits.output)));
  if (killed && verdict.pids_over)
    return Outcome{OutcomeKind::signaled, 0, SIGKILL, "pids",
                   fmt::format("too many processes: limit {} (--pids)", limits.pids)};
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    // As with SIGSYS, nobody says who sent it. Every box has the limit (RLIMIT_FSIZE); its caller's own may be lower.
    if (signal == SIGXFSZ)
      return {OutcomeKind::signaled, 0, signal, "disk",
              fmt::format("ended by SIGXFSZ: from the kernel, which lets no file grow beyond {} (--disk), or from the "
                          "guest itself",
                          format_size(limits.disk))};
    if (signal == SIGSYS && !verdict.killed_calls.empty())
      return {
          OutcomeKind::denied, 0, signal, "",
          fmt::format("ended by SIGSYS: from the system call filter, which sends it for {}, or from the guest itself",
                      verdict.killed_calls)};
    return {OutcomeKind::signaled, 0, signal, "",
            fmt::format("the guest was ended by signal {} ({})", signal, signal_name(signal))};
  }
  return {OutcomeKind::exited, WEXITSTATUS(status), 0, "", ""};
}

std::optional<Error> untold_end(int init_status) {
  if (WIFSIGNALED(init_status) && WTERMSIG(init_status) == SIGKILL) return std::nullopt;
  const std::string how = WIFSIGNALED(init_status) ? "was ended by " + signal_name(WTERMSIG(init_status))
                                                   : fmt::format("left with {}", WEXITSTATUS(init_status));
  return unavailable("the box's first process " + how + ", and has not told how the guest did",
                     "run it again; if it happens twice, report it with what `pctx-sandbox doctor` says");
}

}  // namespace pctx
