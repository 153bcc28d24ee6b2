#include <unistd.h>

#include <fmt/format.h>

#include "base/print.h"
#include "box/box.h"
#include "cli/options.h"
#include "cli/verbs.h"

namespace pctx::cli {
namespace {

// A session has no deadline, and what it prints goes to a terminal that somebody watches.
constexpr std::uint64_t kSessionOutput = 1ULL << 40;

Result<int> shell(RunArguments arguments) {
  if (::isatty(STDIN_FILENO) != 1)
    return usage_error("shell needs a terminal on standard input",
                       "for a program that comes from a file or pipe: pctx-sandbox run -");
  arguments.tty = true;
  arguments.command = {"-"};
  if (!arguments.timeout) arguments.timeout = "0";
  if (!arguments.output) arguments.output = fmt::format("{}", kSessionOutput);
  // As empty as a new folder, and gone with the box.
  arguments.tmpfs.emplace_back("/mnt");
  if (!arguments.workdir) arguments.workdir = "/mnt";
  Prepared prepared = PCTX_TRY(prepare(arguments));
  prepared.command.argv.pop_back();  // "-": with a terminal on its input an interpreter asks by itself
  if (!arguments.quiet) {
    for (const std::string& notice : prepared.plan.notices) say(notice);
    print_error("pctx-sandbox: Python in a box; what you leave in /mnt goes with it. Ctrl-D ends it.\n");
  }
  const Ending ending = PCTX_TRY(run_box(prepared.plan, prepared.command, {.last = true}));
  if (ending.outcome.is_to_be_told()) say(ending.outcome.sentence);
  return ending.outcome.exit_status();
}

}  // namespace

void add_shell(Verb program, const Words& words, int& status) {
  const Verb verb = program.add("shell", "Python's prompt in a box, on a terminal of the box's own");
  verb.footer(
      "Examples:\n"
      "  pctx-sandbox shell --with pandas\n"
      "  pctx-sandbox shell --venv .venv --network allow:api.example.com\n"
      "Exit status: the interpreter's own, as with run.");
  auto arguments = std::make_shared<RunArguments>();
  arguments->may_build = true;
  verb.option("--with", arguments->with, {.type = "REQ", .means = "A package to have, found or built; repeatable"});
  verb.option("--venv", arguments->venv, {.type = "DIR", .means = "A virtualenv to run with, lent read-only"});
  verb.option("--python", arguments->python, {.type = "FILE", .means = "Interpreter (default: the system's)"});
  verb.option("--apparmor", arguments->apparmor,
              {.type = "NAME", .means = "AppArmor profile to enter, which must be loaded"});
  verb.option("--network", arguments->network,
              {.type = "MODE", .means = "none (default), allow:HOST[:PORT],... or host"});
  verb.option("--memory", arguments->memory, {.type = "SIZE", .means = "Memory, swap and tmpfs included (default 1G)"});
  verb.option("--timeout", arguments->timeout, {.type = "TIME", .means = "Wall-clock time (default none)"});
  verb.option("--policy", arguments->policy, {.type = "FILE", .means = "Read a policy (JSON); options override it"});
  verb.flag("-q,--quiet", arguments->quiet, "No words of ours on stderr before the prompt");
  verb.act(status, [arguments, &words] {
    enter_delegated_scope(words.all);
    return shell(*arguments);
  });
}

}  // namespace pctx::cli
