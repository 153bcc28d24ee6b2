#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>

#include <fmt/format.h>

#include "base/print.h"
#include "base/printable.h"
#include "box/box.h"
#include "cli/closed_file.h"
#include "cli/no_interpreter.h"
#include "cli/options.h"
#include "cli/own_file.h"
#include "cli/report_file.h"
#include "cli/verbs.h"
#include "sys/diagnose.h"
#include "sys/files.h"
#include "sys/process.h"

namespace pctx::cli {
namespace {

// Names are the guest's words too, and four times as long as they were once they can be shown: `most` bytes of them.
void list_changes(const FolderChanges& changes, std::uint64_t most) {
  std::uint64_t more = 0;
  const auto show = [&](const char* what, const std::string& path, std::string_view reason = {}) {
    const std::string line = fmt::format("{:<9}{}{}\n", what, printable_path(path), reason);
    if (more > 0 || line.size() > most) {
      ++more;
      return;
    }
    most -= line.size();
    print_error("{}", line);
  };
  for (const std::string& path : changes.created) show("created", path);
  for (const std::string& path : changes.modified) show("modified", path);
  for (const std::string& path : changes.deleted) show("deleted", path);
  for (const SkippedPath& skipped : changes.skipped)
    show("skipped", skipped.path, fmt::format(" ({})", skipped.reason));
  if (more > 0) say(fmt::format("{} more changes are not listed, for --output; --report FILE has them all", more));
  if (changes.truncated) say("the list of changes is not complete: " + changes.truncated_reason);
}

// A guest that fails seldom says which call was refused, only "Operation not permitted". ENOSYS asks for another way.
std::string refused_meanwhile(const DenialBook& book, bool by_own_profile) {
  constexpr std::size_t kMost = 3;
  std::vector<std::string> shown;
  std::size_t more = 0;
  for (const Denial& each : book.kinds()) {
    if (each.answer == "ENOSYS" && !by_own_profile) continue;
    if (shown.size() == kMost)
      ++more;
    else
      shown.push_back(
          fmt::format("{}{}{} ({})", each.syscall, each.detail.empty() ? "" : " ", each.detail, each.answer));
  }
  if (shown.empty()) return "";
  return fmt::format("refused meanwhile: {}{}; --report FILE says why", fmt::join(shown, ", "),
                     more == 0 ? "" : fmt::format(" and {} more", more));
}

// All has been written and tidied by now. Comes back where we are not to die of it.
void end_by(int signal) {
  flush();
  (void)::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // a core of ours would say nothing of the guest's
  (void)std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
}

std::string times(std::uint64_t count) { return count == 1 ? "once" : fmt::format("{} times", count); }

// A caller that is killed takes its box along: ours ends with us.
Result<void> die_with_parent() {
  const pid_t parent = ::getppid();
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) return os_error("cannot tie this run to its caller");
  if (::getppid() != parent) return unavailable("the caller has ended", "nothing was run");
  return {};
}

Result<int> print_policy(const RunArguments& arguments) {
  const Policy policy = PCTX_TRY(to_policy(arguments));
  PCTX_TRY(validate(policy));
  PCTX_TRY(check_as_json(policy));
  PCTX_TRY(sys::write_all(STDOUT_FILENO, printable_json(policy_to_json(policy)) + "\n"));
  return 0;
}

Result<int> run(const RunArguments& arguments, int report) {
  if (arguments.die_with_parent) PCTX_TRY(die_with_parent());
  if (arguments.tty && arguments.json)
    return usage_error("--tty and --json cannot be used together",
                       "with a terminal, write the report to a file: --report FILE");
  (void)sys::allow_descriptors();
  Prepared prepared = PCTX_TRY(prepare(arguments, true));
  PCTX_TRY(check_report(prepared.policy, report));
  if (arguments.changed && !prepared.policy.mnt) return nothing_to_list();
  if (!arguments.quiet)
    for (const std::string& notice : prepared.plan.notices) say(notice);
  auto ended =
      run_box(prepared.plan, prepared.command,
              {.capture = arguments.json, .report_changes = arguments.changed, .last = true}, std::move(prepared.head));
  if (!ended) {
    Error error = with_interpreter(std::move(ended).error(), prepared.command.argv[0], prepared.plan);
    return with_own_file(std::move(error), arguments.command[0], prepared.plan);
  }
  Ending ending = *std::move(ended);
  // Inside a container the one who started us says what it is.
  if (const char* inside = std::getenv("PCTX_SANDBOX_INSIDE"); inside != nullptr) {
    const std::string_view words = inside;
    const std::size_t space = words.find(' ');
    ending.receipt.backend = words.substr(0, space);
    ending.receipt.backend_reason = space == std::string_view::npos ? "" : words.substr(space + 1);
    if (const char* limits = std::getenv("PCTX_SANDBOX_INSIDE_LIMITS")) ending.receipt.backend_limits = limits;
  }
  // Whoever reads the report and wants no words of ours has everything there; stderr is then the guest's alone.
  const bool only_report = report >= 0 && arguments.quiet;
  if (!only_report && ending.outcome.is_to_be_told()) say(ending.outcome.sentence);
  // By its own doing, not by a signal of ours that it was sent.
  const bool failed = ending.outcome.exit_status() != 0 && ending.forwarded_signal == 0;
  const bool explains = failed && !arguments.quiet && !arguments.json && report < 0;
  const std::string refused =
      explains ? refused_meanwhile(ending.receipt.denials, prepared.plan.policy.seccomp.has_value()) : "";
  if (!refused.empty()) say(refused);
  if (explains && ending.receipt.processes_refused > 0)
    say(fmt::format("limit {} (--pids) was reached: a process or thread more was refused {}",
                    prepared.plan.policy.limits.pids, times(ending.receipt.processes_refused)));
  if (failed && ending.outcome.kind == OutcomeKind::exited && !arguments.quiet && refused.empty()) {
    auto lacking = own_path_of(arguments.command, prepared.plan);
    if (!lacking) lacking = closed_to_guest({prepared.policy.binds.data(), prepared.given}, prepared.plan);
    if (lacking) say(*lacking);
  }
  if (ending.receipt.network && !ending.receipt.attempts_recorded && !arguments.quiet)
    say("this host lets nobody see attempts to reach direct addresses: they failed, and are not in the receipt");
  if (ending.changes && !arguments.json && !only_report) list_changes(*ending.changes, prepared.policy.limits.output);
  if (arguments.json) PCTX_TRY(sys::write_all(STDOUT_FILENO, report_json(ending, true) + "\n"));
  // Last: a file with two objects is no JSON, and what fails is written there too.
  if (report >= 0) PCTX_TRY(write_report(report, report_json(ending, false)));
  if (ending.sink_error != 0) {
    Error error = os_error("the guest's output could not be written", ending.sink_error);
    error.hint = ending.sink_error == ENOSPC ? "make room where it goes, or let it go elsewhere"
                                             : "look at what it goes to, or let it go to a file";
    return complain(error);
  }
  // A shell's loop goes on after a command that was interrupted and says 130; it ends with one that died of the key. A
  // guest that shrugs that off is killed by the next.
  const int signal = ending.outcome.kind == OutcomeKind::signaled ? ending.outcome.signal : 0;
  if (signal != 0 && (signal == ending.typed_signal || (signal == SIGKILL && ending.typed_signal == SIGINT)))
    end_by(ending.typed_signal);
  return ending.outcome.exit_status();
}

// Only a host that refuses boxes is left for another backend, and only once that is known: then nothing has run.
Result<int> run_anywhere(const RunArguments& arguments, int report) {
  const std::string name = arguments.backend.value_or(backend::named_by_caller());
  if (name != "auto" && name != "namespaces") return run_elsewhere(PCTX_TRY(backend::choose(name)), arguments, report);
  auto here = run(arguments, report);
  if (here || name != "auto" || here.error().kind == ErrorKind::usage) return here;
  const auto choice = backend::choose("auto");
  if (!choice || choice->backend->execute == nullptr) return here;
  if (!arguments.quiet) say(fmt::format("{}: {}", choice->backend->name, choice->reason));
  return run_elsewhere(*choice, arguments, report);
}

Result<int> run_with_report(const RunArguments& arguments) {
  const Fd report = PCTX_TRY(open_report(arguments.report));
  auto result = run_anywhere(arguments, report.get());
  if (!result && result.error().kind == ErrorKind::os) result = with_next_step(std::move(result).error());
  if (!result && report) (void)write_report(report.get(), error_json(result.error()));
  return result;
}

int act(const RunArguments& arguments, const Words& words) {
  if (!arguments.print_policy) enter_delegated_scope(words.all);
  auto result = arguments.print_policy ? print_policy(arguments) : run_with_report(arguments);
  if (!result && arguments.json) print_out("{}\n", error_json(result.error()));
  return result ? *result : complain(result.error());
}

}  // namespace

std::optional<int> run_plain(const Words& words) {
  const auto arguments = read_plain_run(words);
  if (!arguments) return {};
  return act(*arguments, words);
}

void add_run(Verb program, const Words& words, int& status) {
  const Verb verb = program.add("run", "Run a command, a script or standard input in a box");
  verb.footer(
      "Examples:\n"
      "  pctx-sandbox run -- ls /\n"
      "  pctx-sandbox run --memory 256M script.py one two\n"
      "  pctx-sandbox run --mnt ./work --changed -- make\n"
      "  pctx-sandbox run --with pandas script.py\n"
      "  echo 'print(6 * 7)' | pctx-sandbox run -\n"
      "Exit status: the command's own; 128+N after signal N; 124 time limit; 125 we failed;\n"
      "126 the command cannot be run; 127 it is not there.");
  if (!words.wants("run")) return;
  auto arguments = std::make_shared<RunArguments>(default_arguments());
  add_run_options(verb, words, arguments, status,
                  [arguments, &words]() -> Result<int> { return act(*arguments, words); });
}

}  // namespace pctx::cli
