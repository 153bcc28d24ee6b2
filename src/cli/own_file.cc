#include "cli/own_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "base/printable.h"
#include "sys/files.h"

namespace pctx::cli {
namespace {

// Words that a shell takes as they are: an example with others would not do what it says.
bool is_plain(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           std::string_view{"._-+/,:@"}.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

// For an example: as a shell takes it for one word. Empty if that would not show what it is.
std::string quoted(const std::string& word) {
  if (is_plain(word)) return word;
  const bool shows = printable_path(word) == word && word.find('\'') == std::string::npos;
  return shows ? fmt::format("'{}'", word) : std::string{};
}

// Python's own, which `run` does not take for a script of its own by that name, and which need not be executable.
bool is_odd_script(const std::string& word) {
  return word.ends_with(".pyw") || word.ends_with(".PY") || word.ends_with(".PYW");
}

// A path that means the same in this folder and, once it is lent, in /mnt. Every box has a "." of its own.
bool is_below_here(const std::string& word) {
  return word.find_first_not_of("./") != std::string::npos && word.front() != '/' && word.front() != '-' &&
         word != ".." && !word.starts_with("../") && word.find("/../") == std::string::npos && !word.ends_with("/..");
}

// Its kind, as S_IFMT has it; 0 for nothing. Inside a container "here" is not where the line was typed.
mode_t kind_of(const std::string& path) {
  struct stat status {};
  return std::getenv("PCTX_SANDBOX_INSIDE") == nullptr && ::stat(path.c_str(), &status) == 0 ? status.st_mode & S_IFMT
                                                                                             : 0;
}

// Nothing of ours lies where relative paths lead in this box.
bool begins_empty(const Plan& plan) {
  return plan.workdir == plan.home &&
         std::none_of(plan.policy.binds.begin(), plan.policy.binds.end(),
                      [&](const Bind& bind) { return (bind.target + "/").starts_with(plan.home + "/"); });
}

}  // namespace

std::string run_own_file(const std::string& word) {
  const std::string shown = fmt::format("{} is a file of yours, which the box does not have", printable_path(word));
  const std::string there = quoted(word.starts_with("./") ? word : "./" + word);
  if (there.empty()) return shown + "; lend its folder: pctx-sandbox run --mnt . -- …";
  if (word.ends_with(".py")) return fmt::format("{}: write pctx-sandbox run {}", shown, quoted(word));
  return fmt::format("{}; lend its folder: pctx-sandbox run --mnt . -- {}{}", shown,
                     is_odd_script(word) ? "python3 " : "", there);
}

Error lacks_own_path(const std::vector<std::string>& command, const std::string& word) {
  // As people type it who know Python: the script is the first word that is no option.
  const bool script = command.size() > 1 && command[1] == word && word.ends_with(".py") && !quoted(word).empty() &&
                      command[0].starts_with("python");
  return usage_error(fmt::format("{} is yours, and the box does not have it", printable_path(word)),
                     script ? fmt::format("write pctx-sandbox run {}", quoted(word))
                            : "if it failed for that, lend this folder: pctx-sandbox run --mnt . …");
}

Error with_own_file(Error error, const std::string& word, const Plan& plan) {
  if (error.kind != ErrorKind::not_found || !is_below_here(word)) return error;
  if (begins_empty(plan) && kind_of(word) == S_IFREG) error.hint = run_own_file(word);
  const bool no_path = word.find('/') == std::string::npos;
  if (plan.policy.mnt && plan.workdir == "/mnt" && no_path && kind_of(sys::join(*plan.policy.mnt, word)) == S_IFREG)
    error.hint =
        fmt::format("a command without a slash is looked for in the box's PATH: write ./{}", printable_path(word));
  return error;
}

std::optional<Error> own_path_of(const std::vector<std::string>& command, const Plan& plan) {
  if (!begins_empty(plan)) return std::nullopt;
  for (std::size_t at = 1; at < command.size(); ++at) {
    const mode_t kind = is_below_here(command[at]) ? kind_of(command[at]) : 0;
    if (kind == S_IFREG || kind == S_IFDIR) return lacks_own_path(command, command[at]);
  }
  return std::nullopt;
}

}  // namespace pctx::cli
