#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <memory>

#include <fmt/format.h>

#include "base/print.h"
#include "cli/verbs.h"
#include "launch/facts.h"

namespace pctx::cli {
namespace {

struct SetupArguments {
  bool yes = false, dry_run = false;
};

void show_steps(const std::vector<Remedy>& actions, std::string_view sudo) {
  for (const Remedy& action : actions) {
    print_out("# {}: {}\n", action.about, action.why);
    for (const Instruction& step : action.steps) print_out("{}\n", step.line(sudo));
    print_out("\n");
  }
  flush();
}

// The very line that was shown, by a shell, with a PATH that holds the administrator's programs.
Result<void> carry_out(const Instruction& step) {
  const std::string script = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n" + step.line() + "\n";
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execl("/bin/sh", "sh", "-ec", script.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  while (pid > 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (pid > 0 && status == 0) return {};
  return unavailable(fmt::format("this failed: {}", step.file.empty() ? step.command : "writing " + step.file),
                     "what was done before it stays; put it right and run 'pctx-sandbox setup' again");
}

bool agreed() {
  print_out("Run these lines now? [y/N] ");
  flush();
  std::string answer;
  return std::getline(std::cin, answer) && (answer == "y" || answer == "Y" || answer == "yes");
}

Result<int> set_up(const SetupArguments& arguments) {
  const HostFacts facts = gather_facts();
  const bool root = facts.host.uid == 0;
  const auto actions = setup_actions(facts, root ? gather_user_facts(facts) : std::nullopt);
  if (actions.empty()) {
    print_out("nothing to do{}\n",
              remedies(facts).empty() ? "" : ": 'pctx-sandbox doctor' names what is not root's to fix");
    return 0;
  }
  show_steps(actions, root ? "" : "sudo ");
  if (!root) {
    print_out("These lines change the host and need root. Run them, or: sudo {} setup\n", own_name(facts.program));
    return arguments.dry_run ? 0 : 1;
  }
  if (arguments.dry_run) return 0;
  if (!arguments.yes && ::isatty(STDIN_FILENO) != 1)
    return usage_error("nothing was run: there is no terminal to ask on", "read the lines above, then give --yes");
  if (!arguments.yes && !agreed()) {
    print_out("nothing was run\n");
    return 1;
  }
  for (const Remedy& action : actions)
    for (const Instruction& step : action.steps) PCTX_TRY(carry_out(step));
  print_out("done: see 'pctx-sandbox doctor'\n");
  return 0;
}

}  // namespace

void add_setup(Verb program, int& status) {
  const Verb verb = program.add("setup", "Show the fixes that need root, then run them");
  verb.footer("Nothing runs before it was shown. Without --yes it asks; without root it only shows.");
  auto arguments = std::make_shared<SetupArguments>();
  verb.flag("--yes", arguments->yes, "Do not ask");
  verb.flag("--dry-run", arguments->dry_run, "Show the lines and stop");
  verb.act(status, [arguments] { return set_up(*arguments); });
}

}  // namespace pctx::cli
