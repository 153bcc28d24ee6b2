// The line as CLI11 reads it.
#include <cstdio>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/verbs.h"

// The initialisers of this library, which late_init.ld keeps from running when the program starts; none where a program
// is linked without it.
extern "C" {
using Initialiser = void (*)(int argc, char** argv, char** envp);
[[gnu::weak]] extern const Initialiser pctx_late_init_begin[];  // NOLINT(readability-identifier-naming)
[[gnu::weak]] extern const Initialiser pctx_late_init_end[];    // NOLINT(readability-identifier-naming)
}

namespace pctx::cli {

int obey(const Words& words) {
  for (const Initialiser* each = pctx_late_init_begin; each != pctx_late_init_end; ++each) (*each)(0, nullptr, nullptr);
  CLI::App app{"Runs code that nobody has read, in a box that has never run anything else.", "pctx-sandbox"};
  app.set_version_flag("--version", PCTX_VERSION, "Print the version");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Print the help of every verb");
  int status = 0;
  add_run(app, words, status);
  add_explain(app, words, status);
  add_env(app, words, status);
  add_shell(app, words, status);
  add_doctor(app, words, status);
  add_selfcheck(app, words, status);
  add_apparmor(app, status);
  add_setup(app, status);
  add_serve(app, words, status);
  add_sandbubble(app, status);
  add_lend(app, status);
  add_carry(app, words, status);
  add_completions(app, status);
  app.add_subcommand("help", "Print this help")->callback([&] { fmt::print("{}", app.help()); });
  try {
    std::vector<std::string> reversed(words.options.rbegin(), words.options.rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "pctx-sandbox: {}\nhint: see 'pctx-sandbox help' and 'pctx-sandbox VERB --help'\n",
               error.what());
    return kFailed;
  }
  return status;
}

}  // namespace pctx::cli
