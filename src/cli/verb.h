// A verb of the command line, as its file describes it. Behind it is CLI11, which takes seconds to compile in every
// file that includes it: only those do that look at what others described.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace CLI {  // NOLINT(readability-identifier-naming): theirs
class App;
class Option;
}  // namespace CLI

namespace pctx::cli {

// What the value of an option is.
struct Value {
  const char* type = "";  // stands for it in help texts
  const char* means = "";
  bool required = false;
  bool shows_default = false;
  const char* variable = "";                                    // of the environment, if the option is not given
  std::function<std::string(const std::string& text)> mistake;  // what is wrong with it; empty: nothing
};

class Verb {
 public:
  explicit Verb(CLI::App& app) : app_(&app) {}

  Verb add(const char* name, const char* means) const;  // one below it
  void needs_another() const;                           // it does nothing by itself
  void footer(const char* text) const;

  void flag(const char* name, bool& field, const char* means) const;
  // Names with dashes are options, the others words at their places.
  void option(const char* name, std::string& field, Value value) const;
  void option(const char* name, std::optional<std::string>& field, Value value) const;
  void option(const char* name, std::vector<std::string>& field, Value value) const;  // given once or more often
  void option(const char* name, unsigned& field, Value value) const;
  void option(const char* name, long& field, Value value) const;
  void option(const char* name, std::size_t& field, Value value) const;

  // Once the line has been read. The exit status goes to `status`, that of an error after its sentence.
  void act(int& status, std::function<Result<int>()> work) const;

  CLI::App& app() const { return *app_; }

 private:
  template <class Field>
  CLI::Option* described(const char* name, Field& field, Value value) const;

  CLI::App* app_;
};

}  // namespace pctx::cli
