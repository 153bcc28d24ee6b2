// From what was typed to a Plan: the only place of the command line that looks at the host before a run.
#include <fcntl.h>
#include <sys/stat.h>

#include <climits>
#include <cstdlib>

#include <fmt/format.h>

#include "cli/options.h"
#include "launch/lend.h"
#include "sys/files.h"

namespace pctx::cli {
namespace {

struct Interpreter {
  std::string path;    // as the box sees it
  std::string prefix;  // to lend, when it is not below /usr
};

bool is_program(const std::string& path) {
  const auto head = sys::try_read_file(path, 64_MiB);
  return head && head->starts_with(
                     "\x7f"
                     "ELF");
}

// The system's Python; where there is none, the first real one on the caller's PATH (version managers put scripts there
// that know nothing of a box), with its own prefix lent.
Result<Interpreter> find_python() {
  for (const char* path : {"/usr/bin/python3", "/usr/local/bin/python3"})
    if (::access(path, X_OK) == 0) return Interpreter{path, ""};
  const char* search = std::getenv("PATH");
  for (std::string_view directory : sys::split(search != nullptr ? search : "", ':')) {
    std::array<char, PATH_MAX> resolved;
    if (::realpath(sys::join(directory, "python3").c_str(), resolved.data()) == nullptr || !is_program(resolved.data()))
      continue;
    const std::string path = resolved.data();
    const std::size_t bin = path.rfind("/bin/");
    if (bin == std::string::npos || bin == 0) continue;
    return Interpreter{path, path.substr(0, bin)};
  }
  return unavailable("no python3 to run the script with", "install python3, or give the whole command after --");
}

bool is_script(const std::string& word) { return word == "-" || word.ends_with(".py"); }

// As `uv run`: a script, standard input, or any command.
Result<Command> resolve_command(const RunArguments& arguments, Policy& policy) {
  if (arguments.command.empty())
    return usage_error("no command is given", "write pctx-sandbox run -- COMMAND, run script.py, or run - < script");
  Command command{arguments.command};
  std::string& first = command.argv[0];
  if (first.empty()) return usage_error("the command is an empty word");
  if (arguments.literal || !is_script(first)) return command;
  const Interpreter python = PCTX_TRY(find_python());
  if (!python.prefix.empty()) policy.binds.push_back({python.prefix, python.prefix, false});
  if (first != "-") {
    struct stat status {};
    if (::stat(first.c_str(), &status) == 0) {
      const std::size_t slash = first.rfind('/');
      const std::string target = "/script/" + first.substr(slash == std::string::npos ? 0 : slash + 1);
      policy.binds.push_back({first, target, false});
      first = target;
    } else if (first.front() != '/') {
      Error error = os_error(first);
      error.kind = ErrorKind::usage;
      return error;
    }
  }
  command.argv.insert(command.argv.begin(), python.path);
  return command;
}

}  // namespace

Result<Prepared> prepare(const RunArguments& arguments) {
  Prepared prepared;
  prepared.policy = PCTX_TRY(to_policy(arguments));
  Policy& policy = prepared.policy;
  prepared.command = PCTX_TRY(resolve_command(arguments, policy));
  CompileInputs inputs;
  inputs.terminal = arguments.tty;
  prepared.plan = PCTX_TRY(compile_here(policy, std::move(inputs)));
  return prepared;
}

}  // namespace pctx::cli
