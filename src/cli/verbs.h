// One file per verb; each adds its own options and returns the exit status.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace pctx::cli {

// Exit statuses of our own; the guest's are passed on as they are.
inline constexpr int kFailed = 125;

// One sentence on stderr, and the status that belongs to the error.
int complain(const Error& error);

// What stood behind "--", split off before parsing: it is never an option of ours.
struct Words {
  std::vector<std::string> options;
  std::vector<std::string> command;
  bool literal = false;
};

void add_run(CLI::App& app, const Words& words, int& status);
void add_explain(CLI::App& app, const Words& words, int& status);
void add_doctor(CLI::App& app, int& status);
void add_setup(CLI::App& app, int& status);
void add_completions(CLI::App& app, int& status);

}  // namespace pctx::cli
