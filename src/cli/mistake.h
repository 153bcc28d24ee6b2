// What is wrong with a line that CLI11 cannot read, in our own words.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace CLI {  // NOLINT(readability-identifier-naming): theirs
class App;
class ParseError;
}  // namespace CLI

namespace pctx::cli {

// The word that was probably meant: another ending, or one or two letters apart. Empty if none is that near.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// The verb that these words name, one below the other; `app` itself for none. An error if one of them is no verb.
Result<const CLI::App*> find_verb(const CLI::App& app, std::span<const std::string> verbs);

// `parsed` has stopped at the mistake; `whole` knows every option.
Error explain_mistake(const CLI::ParseError& error, const std::vector<std::string>& words, const CLI::App& parsed,
                      const CLI::App& whole);

}  // namespace pctx::cli
