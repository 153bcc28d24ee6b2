// Completions are written from the options that the parser itself knows, so they cannot go stale.
#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "backend/backend.h"
#include "base/print.h"
#include "cli/verbs.h"
#include "policy/layer.h"
#include "sys/files.h"

namespace pctx::cli {
namespace {

enum class Takes { nothing, text, file, folder, choice, list };

struct Word {
  std::vector<std::string> names;  // "--memory", "-t"
  std::string means;
  std::string value;  // what the help calls its value
  Takes takes = Takes::nothing;
  std::vector<std::string> choices;
};

struct KnownVerb {
  std::string name, means;
  std::vector<Word> options;
  std::vector<std::string> choices;  // of its own argument
  bool commands = false;             // what follows is a command line of its own
};

std::vector<std::string> layer_names() {
  std::vector<std::string> names;
  for (const LayerInfo& entry : kLayers) names.emplace_back(entry.name);
  return names;
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names{"auto"};
  for (const backend::Backend& each : backend::backends()) names.emplace_back(each.name);
  return names;
}

std::vector<std::string> verb_names(const CLI::App* app) {
  std::vector<std::string> names;
  if (app == nullptr) return names;
  for (const CLI::App* verb : app->get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(verb->get_name());
  return names;
}

// "SHELL:{bash,fish,zsh}", which is how the parser describes a list of choices.
std::vector<std::string> listed_choices(const std::string& type) {
  const std::size_t open = type.find('{'), close = type.rfind('}');
  std::vector<std::string> choices;
  if (open == std::string::npos || close == std::string::npos) return choices;
  for (std::string_view word : sys::split(std::string_view{type}.substr(open + 1, close - open - 1), ','))
    choices.emplace_back(word);
  return choices;
}

Word word_for(const CLI::Option& option) {
  Word word;
  for (const std::string& name : option.get_snames()) word.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) word.names.push_back("--" + name);
  word.means = option.get_description();
  if (option.get_expected_max() == 0 || option.get_type_size() == 0) return word;
  word.value = option.get_type_name();
  word.choices = listed_choices(word.value);
  if (word.value.starts_with("LAYER")) word.choices = layer_names();
  if (word.value == "BACKEND") word.choices = backend_names();
  if (word.value.starts_with("MODE")) word.choices = {"none", "allow:", "host"};
  const bool list = word.value.find("...") != std::string::npos;
  word.takes = list                                                               ? Takes::list
               : !word.choices.empty()                                            ? Takes::choice
               : word.value == "DIR"                                              ? Takes::folder
               : word.value.starts_with("FILE") || word.value.starts_with("HOST") ? Takes::file
                                                                                  : Takes::text;
  return word;
}

KnownVerb verb_for(const CLI::App& app) {
  KnownVerb verb{app.get_name(), app.get_description(), {}, {}, app.get_prefix_command()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional())
      verb.choices =
          option->get_type_name() == "VERB" ? verb_names(app.get_parent()) : listed_choices(option->get_type_name());
    else
      verb.options.push_back(word_for(*option));
  }
  // Verbs of a verb (`env build`): their names are choices, their options are offered behind any of them.
  for (const CLI::App* inner : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (app.get_parent() == nullptr) break;
    verb.choices.push_back(inner->get_name());
    for (Word& option : verb_for(*inner).options) {
      const auto same = [&](const Word& known) { return known.names == option.names; };
      if (std::none_of(verb.options.begin(), verb.options.end(), same)) verb.options.push_back(std::move(option));
    }
  }
  return verb;
}

struct Program {
  std::vector<Word> options;
  std::vector<KnownVerb> verbs;
};

Program describe_program(const CLI::App& app) {
  Program program{verb_for(app).options, {}};
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    program.verbs.push_back(verb_for(*verb));
  return program;
}

std::string all_names(const std::vector<Word>& options) {
  std::string text;
  for (const Word& option : options) text += fmt::format("{}{}", text.empty() ? "" : " ", fmt::join(option.names, " "));
  return text;
}

// --- bash ---

// The cases that complete the value after an option: nothing after those that take any text, no case for flags.
std::string bash_values(const KnownVerb& verb) {
  std::string text, free;
  for (const Word& option : verb.options) {
    const std::string names = fmt::format("{}:{}", verb.name, fmt::join(option.names, fmt::format("|{}:", verb.name)));
    switch (option.takes) {
      case Takes::nothing:
        break;
      case Takes::text:
        free += fmt::format("{}{}", free.empty() ? "" : "|", names);
        break;
      case Takes::file:
        text += fmt::format("    {}) _pctx_sandbox_reply -f -- \"$cur\"; return ;;\n", names);
        break;
      case Takes::folder:
        text += fmt::format("    {}) _pctx_sandbox_reply -d -- \"$cur\"; return ;;\n", names);
        break;
      case Takes::choice:
        text += fmt::format("    {}) _pctx_sandbox_reply -W '{}' -- \"$cur\"; return ;;\n", names,
                            fmt::join(option.choices, " "));
        break;
      case Takes::list:  // what stands before the last comma is kept
        text += fmt::format("    {}) _pctx_sandbox_reply -P \"$kept\" -W '{}' -- \"${{cur##*,}}\"; return ;;\n", names,
                            fmt::join(option.choices, " "));
        break;
    }
  }
  return free.empty() ? text : text + fmt::format("    {}) return ;;\n", free);
}

constexpr std::string_view kBashScript =
    R"sh(# bash completion for pctx-sandbox; load it with: source <(pctx-sandbox completions bash)
_pctx_sandbox_reply() {{ mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen "$@"); }}
_pctx_sandbox() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} verb= words= kept= value= word
  COMPREPLY=()
  # bash hands over "--network=no" in three words.
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  [[ $cur == *,* ]] && kept=${{cur%,*}},
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD - 1}}"; do
    if [[ -z $verb ]]; then
      [[ $word != -* ]] && verb=$word
    elif [[ $word == = ]]; then
      :
    elif [[ -n $value ]]; then
      value=
    else
      case $verb:$word in
        {takers}) value=next ;;
        explain:run) verb=run ;;
        *:--) value=command ;;
        *:-*) ;;
        {commands}) value=command ;;
      esac
      # What stands behind "--", or behind the first word that is no option, is a command of the box.
      if [[ $value == command ]]; then
        _pctx_sandbox_reply -c -f -- "$cur"
        return
      fi
    fi
  done
  case $verb:$prev in
{values}  esac
  case $verb in
{words}    "") words='{verbs}' ;;
  esac
  _pctx_sandbox_reply -W "$words" -- "$cur"
  case $verb: in
    {commands}) [[ $cur != -* ]] && _pctx_sandbox_reply -c -f -- "$cur" ;;
  esac
}}
complete -o filenames -F _pctx_sandbox pctx-sandbox
)sh";

std::string bash_script(const Program& program) {
  std::string values, words, verbs = all_names(program.options), commands, takers;
  for (const KnownVerb& verb : program.verbs) {
    values += bash_values(verb);
    words += fmt::format("    {}) words='{}{}{}' ;;\n", verb.name, all_names(verb.options),
                         verb.choices.empty() ? "" : " ", fmt::join(verb.choices, " "));
    verbs += " " + verb.name;
    if (verb.commands) commands += fmt::format("{}{}:*", commands.empty() ? "" : "|", verb.name);
    for (const Word& option : verb.options)
      for (const std::string& name : option.names)
        if (option.takes != Takes::nothing)
          takers += fmt::format("{}{}:{}", takers.empty() ? "" : "|", verb.name, name);
  }
  using namespace fmt::literals;
  return fmt::format(kBashScript, "values"_a = values, "words"_a = words, "verbs"_a = verbs, "commands"_a = commands,
                     "takers"_a = takers);
}

// --- zsh ---

std::string escaped(const std::string& text, std::string_view special) {
  std::string result;
  for (char c : text) {
    if (special.find(c) != std::string_view::npos) result += '\\';
    result += c == '\'' ? std::string{"'\\''"} : std::string{c};
  }
  return result;
}

std::string zsh_action(const Word& option) {
  switch (option.takes) {
    case Takes::file:
      return "_files";
    case Takes::folder:
      return "_files -/";
    case Takes::choice:
      return escaped(fmt::format("({})", fmt::join(option.choices, " ")), ":");  // a bare one would end the action
    case Takes::list:
      if (!option.choices.empty()) return fmt::format("_values -s , value {}", fmt::join(option.choices, " "));
      break;
    case Takes::text:
    case Takes::nothing:
      break;
  }
  return "";
}

std::string zsh_options(const std::vector<Word>& options) {
  std::string text;
  for (const Word& option : options)
    for (const std::string& name : option.names) {
      const std::string means = escaped(option.means, "[]:");
      // Repeatable: which option may be given twice is for the parser to say.
      text += option.takes == Takes::nothing
                  ? fmt::format(" \\\n        '*{}[{}]'", name, means)
                  : fmt::format(" \\\n        '*{}[{}]:{}:{}'", name, means,
                                escaped(option.value.substr(0, option.value.find_first_of(":[,")), ":"),
                                zsh_action(option));
    }
  return text;
}

std::string zsh_script(const Program& program) {
  std::string verbs, cases;
  for (const KnownVerb& verb : program.verbs) {
    verbs += fmt::format("    '{}:{}'\n", verb.name, escaped(verb.means, ":"));
    std::string rest;
    if (!verb.choices.empty()) rest = fmt::format(" \\\n        '1:value:({})'", fmt::join(verb.choices, " "));
    if (verb.commands) rest = " \\\n        '*::command:_normal'";
    cases += fmt::format("    {})\n      _arguments{}{} ;;\n", verb.name, zsh_options(verb.options), rest);
  }
  return fmt::format(R"sh(#compdef pctx-sandbox
# zsh completion for pctx-sandbox; load it with: source <(pctx-sandbox completions zsh)
_pctx_sandbox() {{
  local -a verbs
  local state line
  verbs=(
{}  )
  _arguments -C{} \
        '1:verb:->verb' '*::argument:->argument'
  case $state in
    verb) _describe verb verbs ;;
    argument)
      case $line[1] in
{}      esac ;;
  esac
}}
if [[ $funcstack[1] == _pctx-sandbox ]]; then _pctx_sandbox "$@"; else compdef _pctx_sandbox pctx-sandbox; fi
)sh",
                     verbs, zsh_options(program.options), cases);
}

// --- fish ---

std::string fish_options(const std::vector<Word>& options, const std::string& condition) {
  std::string text;
  for (const Word& option : options) {
    text += fmt::format("complete -c pctx-sandbox -n '{}'", condition);
    for (const std::string& name : option.names)
      text += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2)) : fmt::format(" -s {}", name.substr(1));
    switch (option.takes) {
      case Takes::nothing:
        break;
      case Takes::file:
        text += " -r -F";
        break;
      case Takes::folder:
        text += " -x -a '(__fish_complete_directories)'";
        break;
      case Takes::choice:
        text += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
        break;
      case Takes::list:
        text += fmt::format(" -x -a '(__fish_append , {})'", fmt::join(option.choices, " "));
        break;
      case Takes::text:
        text += " -x";
        break;
    }
    std::string means;
    for (char c : option.means) means += c == '\'' || c == '\\' ? fmt::format("\\{}", c) : std::string{c};
    text += fmt::format(" -d '{}'\n", means);
  }
  return text;
}

std::string fish_script(const Program& program) {
  std::string text = "# fish completion for pctx-sandbox; load it with: pctx-sandbox completions fish | source\n";
  text += "complete -c pctx-sandbox -f\n";
  text += fish_options(program.options, "__fish_use_subcommand");
  for (const KnownVerb& verb : program.verbs) {
    const std::string here = "__fish_seen_subcommand_from " + verb.name;
    text += fmt::format("complete -c pctx-sandbox -n '__fish_use_subcommand' -a {} -d '{}'\n", verb.name,
                        escaped(verb.means, ""));
    text += fish_options(verb.options, here);
    if (!verb.choices.empty())
      text += fmt::format("complete -c pctx-sandbox -n '{}' -a '{}'\n", here, fmt::join(verb.choices, " "));
    if (verb.commands)
      text += fmt::format("complete -c pctx-sandbox -n '{}' -F -a '(__fish_complete_command)'\n", here);
  }
  return text;
}

}  // namespace

void add_completions(Verb program, int& status) {
  const Verb verb = program.add("completions", "Print the completions for a shell");
  verb.footer(
      "Examples:\n"
      "  source <(pctx-sandbox completions bash)\n"
      "  source <(pctx-sandbox completions zsh)\n"
      "  pctx-sandbox completions fish | source");
  auto shell = std::make_shared<std::string>();
  verb.option("shell", *shell, {.type = "SHELL", .means = "The shell", .required = true});
  verb.app().get_option("shell")->check(CLI::IsMember({"bash", "fish", "zsh"}));  // which shows them in the help
  verb.act(status, [program, shell]() -> Result<int> {
    const Program known = describe_program(program.app());
    const std::string script = *shell == "bash"  ? bash_script(known)
                               : *shell == "zsh" ? zsh_script(known)
                                                 : fish_script(known);
    print_out("{}", script);
    return 0;
  });
}

}  // namespace pctx::cli
