#include <cstdio>

#include <fmt/format.h>

#include "cli/options.h"
#include "cli/verbs.h"

namespace pctx::cli {

void add_explain(CLI::App& app, const Words& words, int& status) {
  CLI::App* verb = app.add_subcommand("explain", "Print what a 'run' line would do, without running it");
  if (!words.wants("explain")) return;
  verb->prefix_command();
  auto arguments = std::make_shared<RunArguments>();
  add_run_options(*verb, *arguments);
  verb->callback([verb, arguments, &words, &status] {
    arguments->command = verb->remaining();
    arguments->literal = words.literal && arguments->command.empty();
    arguments->command.insert(arguments->command.end(), words.command.begin(), words.command.end());
    if (arguments->command.empty()) arguments->command = {"true"};
    const auto prepared = prepare(*arguments);
    if (!prepared) {
      status = complain(prepared.error());
      return;
    }
    fmt::print("{}", pctx::explain(prepared->plan));
  });
}

}  // namespace pctx::cli
