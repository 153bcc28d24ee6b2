#include "cli/mistake.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace pctx::cli {
namespace {

constexpr std::size_t kNear = 2;

// How many letters must be changed, added, left out or swapped with the next one.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> rows(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        rows[i][j] = i + j;
        continue;
      }
      const std::size_t changed = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({changed, rows[i - 1][j] + 1, rows[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  return rows[a.size()][b.size()];
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(verb->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

const CLI::App* verb_below(const CLI::App& app, const std::string& name) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    if (verb->get_name() == name) return verb;
  return nullptr;
}

// "pctx-sandbox env build"
std::string typed_name(const CLI::App& verb) {
  return verb.get_parent() == nullptr ? verb.get_name()
                                      : fmt::format("{} {}", typed_name(*verb.get_parent()), verb.get_name());
}

// The same without the program, which begins every message of ours.
std::string short_name(const CLI::App& verb) {
  const std::string name = typed_name(verb);
  return name.substr(std::min(name.size(), name.find(' ') + 1));
}

std::string help_for(const CLI::App& verb) {
  return verb.get_parent() == nullptr ? "'pctx-sandbox help' says what each verb does"
                                      : fmt::format("see '{} --help'", typed_name(verb));
}

Error no_such_verb(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> verbs = verbs_of(app);
  const bool top = app.get_parent() == nullptr;
  const std::string meant = nearest(word, verbs);
  return usage_error(fmt::format("there is no verb '{}'{}", word, top ? "" : fmt::format(" of '{}'", short_name(app))),
                     verbs.empty()   ? help_for(app)
                     : meant.empty() ? fmt::format("the verbs are {}; {}", fmt::join(verbs, ", "), help_for(app))
                                     : fmt::format("did you mean '{}'? {}", meant, help_for(app)));
}

Error no_verb(const CLI::App& app) {
  if (app.get_parent() == nullptr)
    return usage_error("no verb is given", "'pctx-sandbox run -- CMD' runs a command in a box; " + help_for(app));
  return usage_error(fmt::format("'{}' needs a verb of its own: {}", short_name(app), fmt::join(verbs_of(app), ", ")),
                     help_for(app));
}

// What `run` does with its result means nothing to `explain`, which takes its other options.
bool is_about_a_run(const CLI::App& verb, const std::string& word) {
  const CLI::App* run = verb.get_name() == "explain" ? verb_below(*verb.get_parent(), "run") : nullptr;
  return run != nullptr && run->get_option_no_throw(word) != nullptr;
}

Error unexpected(const CLI::App& verb, std::string word) {
  if (!word.starts_with('-') || word.size() == 1)
    return usage_error(fmt::format("'{}' takes no word '{}'", short_name(verb), word), help_for(verb));
  word = word.substr(0, word.find('='));
  if (is_about_a_run(verb, word))
    return usage_error(fmt::format("'explain' has no option '{}': it runs nothing, and prints text", word),
                       "leave it out; 'pctx-sandbox run --print-policy' prints the policy as JSON");
  const std::string meant = nearest(word, options_of(verb));
  const std::string hint = meant.empty() ? "" : fmt::format("did you mean '{}'? ", meant);
  if (verb.get_parent() == nullptr) {
    const bool runs = verb_below(verb, "run")->get_option_no_throw(word) != nullptr;
    return usage_error(fmt::format("there is no option '{}' before the verb", word),
                       runs ? fmt::format("what is for a verb stands behind it: pctx-sandbox run {}", word)
                            : hint + "see 'pctx-sandbox --help'");
  }
  return usage_error(fmt::format("'{}' has no option '{}'", short_name(verb), word), hint + help_for(verb));
}

struct Example {
  std::string_view value, text;
};
constexpr std::array<Example, 15> kExamples{{{"SIZE", "512M"},
                                             {"TIME", "30s"},
                                             {"N", "64"},
                                             {"ID", "1000"},
                                             {"DIR", "./work"},
                                             {"GUEST", "/tmp"},
                                             {"HOST[:GUEST]", "./data:/data"},
                                             {"HOST:GUEST", "./data:/data"},
                                             {"GUEST[:SIZE]", "/scratch:64M"},
                                             {"NAME=VALUE", "LANG=C.UTF-8"},
                                             {"MODE", "allow:api.example.com"},
                                             {"CIDR,...", "10.1.0.0/16"},
                                             {"LAYER,...", "landlock,cgroups"},
                                             {"BACKEND", "podman"},
                                             {"REQ", "pandas"}}};

// What the help calls its value, and the words that it may be: CLI11 writes both as "SHELL:{bash,fish,zsh}".
struct AskedValue {
  std::string name, choices;
};
AskedValue value_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find(":{");
  if (open != type.npos) return {type.substr(0, open), type.substr(open + 2, type.size() - open - 3)};
  // CLI11's own name for what was given none.
  return {type == "TEXT" && option.get_positional() ? option.get_name() : type, ""};
}

std::string a_value(const CLI::Option& option) {
  const auto [name, choices] = value_of(option);
  const auto* example = std::find_if(kExamples.begin(), kExamples.end(),
                                     [&name = name](const Example& each) { return each.value == name; });
  std::string text = name.empty() ? "a value" : fmt::format("{} {}", name == "N" || name == "ID" ? "an" : "a", name);
  if (!choices.empty()) text += fmt::format(", one of {}", choices);
  return example == kExamples.end() ? text : fmt::format("{}, such as {}", text, example->text);
}

// The option that CLI11 complains about. Its own words are all that tells which.
const CLI::Option* blamed(const CLI::App& verb, std::string_view words) {
  const CLI::Option* found = nullptr;
  for (const CLI::Option* option : verb.get_options())
    if (words.find(option->get_name()) != std::string_view::npos &&
        (found == nullptr || option->get_name().size() > found->get_name().size()))
      found = option;
  return found;
}

Error wrong_option(const CLI::ParseError& error, const CLI::App& verb, const CLI::Option& option,
                   const std::vector<std::string>& words) {
  const std::string name = option.get_name();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError))
    return usage_error(fmt::format("'{}' needs {}", short_name(verb), a_value(option)), help_for(verb));
  if (option.get_items_expected_max() == 0) return usage_error(fmt::format("{} takes no value", name), help_for(verb));
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ValidationError)) {
    if (const AskedValue value = value_of(option); !value.choices.empty())
      return usage_error(fmt::format("there is no {} '{}'", value.name, fmt::join(option.results(), " ")),
                         fmt::format("choose one of {}", value.choices));
    // A check of our own: its words, and its hint if it has one.
    const std::string text = error.what();
    const std::size_t end = text.find("\nhint: ");
    return usage_error(text.substr(0, end), end == text.npos ? help_for(verb) : text.substr(end + 7));
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ConversionError))
    return usage_error(fmt::format("{}: '{}' is not a number", name, fmt::join(option.results(), " ")), help_for(verb));
  const auto times = std::count_if(words.begin(), words.end(), [&](const std::string& word) {
    return word == name || word.starts_with(name + "=");
  });
  if (times > 1 && option.get_multi_option_policy() == CLI::MultiOptionPolicy::Throw)
    return usage_error(fmt::format("{} was given twice", name), "leave one of them out");
  return usage_error(fmt::format("{} needs {}", name, a_value(option)), help_for(verb));
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = kNear + 1;
  for (const std::string& each : known) {
    // Half a word says nothing of the other half.
    const bool begins = word.size() >= 2 && each.starts_with(word) && word.find_first_not_of('-') != word.npos;
    const std::size_t away = begins ? 1 : distance(word, each);
    if (away < least && away * 2 < each.size()) {
      least = away;
      best = each;
    }
  }
  return best;
}

Result<const CLI::App*> find_verb(const CLI::App& app, std::span<const std::string> verbs) {
  const CLI::App* found = &app;
  for (const std::string& word : verbs) {
    const CLI::App* below = verb_below(*found, word);
    if (below == nullptr) return no_such_verb(*found, word);
    found = below;
  }
  return found;
}

Error explain_mistake(const CLI::ParseError& error, const std::vector<std::string>& words, const CLI::App& parsed,
                      const CLI::App& whole) {
  std::size_t depth = 0;
  const CLI::App *verb = &parsed, *known = &whole;
  while (depth < words.size() && verb_below(*verb, words[depth]) != nullptr) {
    verb = verb_below(*verb, words[depth]);
    known = verb_below(*known, words[depth++]);
  }
  if (!verbs_of(*known).empty()) {
    if (depth == words.size()) return no_verb(*known);
    return words[depth].starts_with('-') ? unexpected(*known, words[depth]) : no_such_verb(*known, words[depth]);
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
    if (const auto rest = verb->remaining(); !rest.empty()) return unexpected(*known, rest.front());
  if (const CLI::Option* option = blamed(*verb, error.what())) return wrong_option(error, *known, *option, words);
  return usage_error(error.what(), help_for(*known));
}

}  // namespace pctx::cli
