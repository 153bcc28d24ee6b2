// The line as CLI11 reads it.
#include <algorithm>
#include <memory>
#include <sstream>

#include <CLI/CLI.hpp>

#include "base/print.h"
#include "cli/mistake.h"
#include "cli/report_file.h"
#include "cli/verbs.h"

// The initialisers of this library, which late_init.ld keeps from running when the program starts; none where a program
// is linked without it.
extern "C" {
using Initialiser = void (*)(int argc, char** argv, char** envp);
[[gnu::weak]] extern const Initialiser pctx_late_init_begin[];  // NOLINT(readability-identifier-naming)
[[gnu::weak]] extern const Initialiser pctx_late_init_end[];    // NOLINT(readability-identifier-naming)
}

namespace pctx::cli {

namespace {

// CLI11 knows nothing of the words that a verb leaves to the guest.
struct HelpText : CLI::Formatter {
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = Formatter::make_usage(app, std::move(name));
    if (app->get_prefix_command()) usage.insert(usage.find_last_not_of('\n') + 1, " [--] CMD [ARG...]");
    return usage;
  }
};

struct CommandLine {
  CLI::App app{"Runs code that nobody has read, in a box that has never run anything else.", "pctx-sandbox"};
  int status = 0;
  std::vector<std::string> verbs;  // of `help`

  explicit CommandLine(const Words& words) {
    app.formatter(std::make_shared<HelpText>());  // every verb takes it over
    app.set_version_flag("--version", PCTX_VERSION, "Print the version");
    app.require_subcommand(1);
    app.set_help_all_flag("--help-all", "Print the help of every verb");
    const Verb program{app};
    add_run(program, words, status);
    add_explain(program, words, status);
    add_env(program, words, status);
    add_shell(program, words, status);
    add_doctor(program, words, status);
    add_selfcheck(program, words, status);
    add_apparmor(program, status);
    add_setup(program, status);
    add_serve(program, words, status);
    add_sandbubble(program, status);
    add_lend(program, status);
    add_carry(program, words, status);
    add_completions(program, status);
    // Only for those who ask how to ask: asked_for_help() reads the verbs.
    app.add_subcommand("help", "Print this help, or that of a verb")
        ->add_option("verb", verbs, "The verb, such as run or env build")
        ->type_name("VERB");
  }
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
};

// `help env build` is `env build --help`.
Result<std::vector<std::string>> asked_for_help(const CLI::App& app, std::vector<std::string> verbs) {
  verbs.erase(verbs.begin());
  PCTX_TRY(find_verb(app, verbs));
  verbs.emplace_back("--help");
  return verbs;
}

}  // namespace

int obey(const Words& words) {
  for (const Initialiser* each = pctx_late_init_begin; each != pctx_late_init_end; ++each) (*each)(0, nullptr, nullptr);
  CommandLine line{words};
  std::vector<std::string> typed = words.options;
  const auto is_option = [](const std::string& word) { return word.starts_with('-'); };
  if (!typed.empty() && typed[0] == "help" && std::none_of(typed.begin(), typed.end(), is_option)) {
    auto help = asked_for_help(line.app, std::move(typed));
    if (!help) return complain(help.error());
    typed = *std::move(help);
  }
  try {
    line.app.parse(std::vector<std::string>(typed.rbegin(), typed.rend()));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      std::ostringstream text;
      const int status = line.app.exit(error, text, text);
      print_out("{}", text.str());
      return status;
    }
    // What could have been meant is among all the options, not only among those of this line.
    const Error mistake = explain_mistake(error, words.options, line.app, CommandLine{Words{}}.app);
    report_mistake(words.options, mistake);
    return complain(mistake);
  }
  return line.status;
}

}  // namespace pctx::cli
