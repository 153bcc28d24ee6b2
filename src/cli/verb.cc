#include "cli/verb.h"

#include <utility>

#include <CLI/CLI.hpp>

#include "cli/verbs.h"

namespace pctx::cli {

Verb Verb::add(const char* name, const char* means) const { return Verb{*app_->add_subcommand(name, means)}; }

void Verb::needs_another() const { app_->require_subcommand(1); }

void Verb::footer(const char* text) const { app_->footer(text); }

void Verb::flag(const char* name, bool& field, const char* means) const { app_->add_flag(name, field, means); }

template <class Field>
CLI::Option* Verb::described(const char* name, Field& field, Value value) const {
  CLI::Option* option = app_->add_option(name, field, value.means);
  if (*value.type != '\0') option->type_name(value.type);
  if (*value.variable != '\0') option->envname(value.variable);
  if (value.required) option->required();
  if (value.mistake) option->check(std::move(value.mistake));
  if (value.shows_default) option->capture_default_str();
  return option;
}

void Verb::option(const char* name, std::string& field, Value value) const { described(name, field, std::move(value)); }
void Verb::option(const char* name, std::optional<std::string>& field, Value value) const {
  described(name, field, std::move(value));
}
void Verb::option(const char* name, std::vector<std::string>& field, Value value) const {
  CLI::Option* option = described(name, field, std::move(value));
  if (*name == '-') option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}
void Verb::option(const char* name, unsigned& field, Value value) const { described(name, field, std::move(value)); }
void Verb::option(const char* name, long& field, Value value) const { described(name, field, std::move(value)); }
void Verb::option(const char* name, std::size_t& field, Value value) const { described(name, field, std::move(value)); }

void Verb::act(int& status, std::function<Result<int>()> work) const {
  app_->callback([&status, work = std::move(work)] {
    const Result<int> result = work();
    status = result ? *result : complain(result.error());
  });
}

}  // namespace pctx::cli
