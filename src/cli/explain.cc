#include <cstdio>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/options.h"
#include "cli/verbs.h"

namespace pctx::cli {

void add_explain(CLI::App& app, const Words& words, int& status) {
  CLI::App* verb = app.add_subcommand("explain", "Print what a 'run' line would do, without running it");
  if (!words.wants("explain")) return;
  auto arguments = std::make_shared<RunArguments>();
  add_run_options(*verb, words, arguments, [arguments, &words, &status] {
    enter_delegated_scope(words.all);  // what a run would do
    if (arguments->command.empty()) arguments->command = {"true"};
    if (const std::string name = arguments->backend.value_or("namespaces"); name != "namespaces" && name != "auto") {
      status = complain(usage_error("a plan is made where the box is", "explain the line without --backend"));
      return;
    }
    const auto prepared = prepare(*arguments);
    if (prepared)
      fmt::print("{}", pctx::explain(prepared->plan));
    else
      status = complain(prepared.error());
  });
}

}  // namespace pctx::cli
