#include <unistd.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/print.h"
#include "box/box.h"
#include "cli/options.h"
#include "cli/verbs.h"

namespace pctx::cli {
namespace {

// A session has no deadline, and what it prints goes to a terminal that somebody watches.
constexpr std::uint64_t kMostOutput = 1ULL << 40;

Result<int> shell(RunArguments arguments) {
  if (::isatty(STDIN_FILENO) != 1)
    return usage_error("shell needs a terminal on standard input",
                       "for a program that comes from a file or pipe: pctx-sandbox run -");
  arguments.tty = true;
  arguments.command = {"-"};
  if (!arguments.timeout) arguments.timeout = "0";
  if (!arguments.output) arguments.output = fmt::format("{}", kMostOutput);
  // As empty as a new folder, and gone with the box.
  arguments.tmpfs.emplace_back("/mnt");
  if (!arguments.workdir) arguments.workdir = "/mnt";
  Prepared prepared = PCTX_TRY(prepare(arguments));
  prepared.command.argv.pop_back();  // "-": with a terminal on its input an interpreter asks by itself
  if (!arguments.quiet) {
    for (const std::string& notice : prepared.plan.notices) print_error("pctx-sandbox: {}\n", notice);
    print_error("pctx-sandbox: Python in a box; what you leave in /mnt goes with it. Ctrl-D ends it.\n");
  }
  const Ending ending = PCTX_TRY(run_box(prepared.plan, prepared.command, {.last = true}));
  if (ending.outcome.is_to_be_told()) print_error("pctx-sandbox: {}\n", ending.outcome.sentence);
  return ending.outcome.exit_status();
}

}  // namespace

void add_shell(CLI::App& app, const Words& words, int& status) {
  CLI::App* verb = app.add_subcommand("shell", "Python's prompt in a box, on a terminal of the box's own");
  verb->footer(
      "Examples:\n"
      "  pctx-sandbox shell --with pandas\n"
      "  pctx-sandbox shell --venv .venv --network allow:api.example.com\n"
      "Exit status: the interpreter's own, as with run.");
  auto arguments = std::make_shared<RunArguments>();
  arguments->may_build = true;
  verb->add_option("--with", arguments->with, "A package to have, found or built; repeatable")
      ->type_name("REQ")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_option("--venv", arguments->venv, "A virtualenv to run with, lent read-only")->type_name("DIR");
  verb->add_option("--python", arguments->python, "Interpreter (default: the system's)")->type_name("FILE");
  verb->add_option("--apparmor", arguments->apparmor, "AppArmor profile to enter, which must be loaded")
      ->type_name("NAME");
  verb->add_option("--network", arguments->network, "none (default), allow:HOST[:PORT],... or host")->type_name("MODE");
  verb->add_option("--memory", arguments->memory, "Memory, swap and tmpfs included (default 1G)")->type_name("SIZE");
  verb->add_option("--timeout", arguments->timeout, "Wall-clock time (default none)")->type_name("TIME");
  verb->add_option("--policy", arguments->policy, "Read a policy (JSON); options override it")->type_name("FILE");
  verb->add_flag("-q,--quiet", arguments->quiet, "No words of ours on stderr before the prompt");
  verb->callback([arguments, &words, &status] {
    enter_delegated_scope(words.all);
    const auto result = shell(*arguments);
    status = result ? *result : complain(result.error());
  });
}

}  // namespace pctx::cli
