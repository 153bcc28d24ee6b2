#include <fmt/format.h>

#include "base/print.h"
#include "base/printable.h"
#include "cli/options.h"
#include "cli/verbs.h"

namespace pctx::cli {
namespace {

// As it would be typed in a shell; what a terminal must not get is escaped.
std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789/._-+=:,@%") == std::string::npos;
    std::string quoted;
    for (char c : word) quoted += c == '\'' ? std::string{"'\\''"} : std::string{c};
    line += fmt::format("{}{}", line.empty() ? "" : " ", plain ? word : fmt::format("'{}'", quoted));
  }
  return printable_path(line);
}

}  // namespace

void add_explain(Verb program, const Words& words, int& status) {
  const Verb verb = program.add("explain", "Print what a 'run' line would do, without running it");
  if (!words.wants("explain")) return;
  auto arguments = std::make_shared<RunArguments>();
  add_run_options(verb, words, arguments, status, [arguments, &words]() -> Result<int> {
    enter_delegated_scope(words.all);  // what a run would do
    const bool given = !arguments->command.empty();
    if (!given) arguments->command = {"true"};
    if (const std::string name = arguments->backend.value_or("namespaces"); name != "namespaces" && name != "auto")
      return usage_error("a plan is made where the box is", "explain the line without --backend");
    const Prepared prepared = PCTX_TRY(prepare(*arguments));
    print_out("command{}\n  {}\n{}", given ? "" : " (none is given, this stands for one)",
              shell_line(prepared.command.argv), pctx::explain(prepared.plan));
    return 0;
  });
}

}  // namespace pctx::cli
