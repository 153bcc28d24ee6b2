// From what was typed to a Plan: the only place of the command line that looks at the host before a run.
#include <fcntl.h>
#include <sys/stat.h>

#include <climits>
#include <cstdlib>

#include <fmt/format.h>

#include "base/print.h"
#include "cli/environment.h"
#include "cli/options.h"
#include "cli/script_input.h"
#include "env/build.h"
#include "env/script.h"
#include "env/virtualenv.h"
#include "launch/lend.h"
#include "sys/files.h"
#include "sys/process.h"

namespace pctx::cli {
namespace {

constexpr std::size_t kMostWords = 64_KiB;

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

// A script that is not there, or is in the box only, is for others to complain about: it is empty here.
Result<std::string> script_text(const RunArguments& arguments, const Policy& policy) {
  const std::string& first = arguments.command[0];
  if (arguments.literal || !is_script(first)) return std::string{};
  if (first == "-") return script_on_input(policy.limits.timeout);
  const Fd file = sys::open_regular(first);
  auto text = file ? sys::read_all(file.get(), env::kMaxScriptBytes) : std::string{};
  return text ? std::move(text) : std::string{};
}

// What the line and the script ask for.
Result<env::Request> packages_wanted(const RunArguments& arguments, const Policy& policy) {
  env::Request request;
  request.requirements = arguments.with;
  request.python = arguments.python.value_or("");
  request.find_only = !arguments.may_build;
  const std::string script = PCTX_TRY(script_text(arguments, policy));
  const auto metadata = PCTX_TRY(env::read_script_metadata(script));
  if (!metadata) return request;
  request.requires_python = metadata->requires_python;
  request.requirements.insert(request.requirements.end(), metadata->dependencies.begin(), metadata->dependencies.end());
  return request;
}

Result<env::Environment> have_packages(const env::Request& request) {
  env::Ensured ensured = PCTX_TRY(env::ensure(request, show_progress()));
  if (ensured.environment) return *std::move(ensured.environment);
  const std::string names = fmt::format("{}", fmt::join(request.requirements, " "));
  if (request.find_only)
    return unavailable(fmt::format("the Environment for {} is not built yet", names),
                       "build it with 'pctx-sandbox env build'");
  explain_failure(ensured, request.requirements);
  return unavailable("nothing was run", "correct the requirements, or see 'pctx-sandbox env build --help'");
}

// On a host that refuses boxes: the path of an Environment that the backend has built for itself.
Result<std::string> build_elsewhere(const env::Request& request, const std::string& backend) {
  if (!request.requires_python.empty() && request.python.empty())
    return unavailable("the script's requires-python cannot be checked on a host that refuses boxes",
                       "name the interpreter with --python");
  std::vector<std::string> words{"/proc/self/exe", "env", "build", "--backend", backend};
  if (!request.python.empty()) words.insert(words.end(), {"--python", request.python});
  words.emplace_back("--");
  words.insert(words.end(), request.requirements.begin(), request.requirements.end());
  const auto done = PCTX_TRY(sys::run_program(words, -1, kMostWords, request.timeout + Millis{60'000}));
  const std::string path = done.out.substr(0, done.out.find('\n'));
  if (done.status == 0 && path.starts_with('/')) return path;
  print_error("{}", done.err);  // with the resolver's words, safe to show: they come from us
  return unavailable("nothing was run", "correct the requirements, or see 'pctx-sandbox env build --help'");
}

void set_unless_given(Policy& policy, const char* name, std::string value) {
  for (const auto& [known, text] : policy.env)
    if (known == name) return;
  policy.env.emplace_back(name, std::move(value));
}

// The interpreter for this line, with whatever must be lent for it; as the box sees it.
Result<std::string> provide_python(const RunArguments& arguments, Prepared& prepared) {
  Policy& policy = prepared.policy;
  const env::Request request = PCTX_TRY(packages_wanted(arguments, policy));
  if (arguments.venv) {
    if (!request.requirements.empty() || !request.python.empty())
      return usage_error("--venv has its own packages and its own Python",
                         "leave --with, --python and the script's own list out");
    const env::Virtualenv venv = PCTX_TRY(env::open_virtualenv(*arguments.venv));
    PCTX_TRY(check_stays(policy, "--venv", *arguments.venv, venv.path));
    env::lend_virtualenv(policy, venv);
    return venv.python();
  }
  if (!request.requirements.empty() && !arguments.built_by.empty() &&
      !PCTX_TRY(backend::find("namespaces"))->look().usable) {
    const std::string path = PCTX_TRY(build_elsewhere(request, arguments.built_by));
    const env::Virtualenv venv = PCTX_TRY(env::open_virtualenv(path));
    env::lend_virtualenv(policy, venv);
    return venv.python();
  }
  if (!request.requirements.empty()) {
    prepared.environment = PCTX_TRY(have_packages(request));
    const env::Environment& environment = *prepared.environment;
    env::lend_environment(policy, environment);
    set_unless_given(policy, "VIRTUAL_ENV", environment.path);
    set_unless_given(policy, "PATH", fmt::format("{}/bin:{}", environment.path, kDefaultPath));
    return environment.python();
  }
  if (!request.python.empty() || !request.requires_python.empty()) {
    const env::Store store = PCTX_TRY(env::Store::open());
    const env::Interpreter python = PCTX_TRY(env::interpreter_for(request, store));
    env::lend_interpreter(policy, python);
    return python.executable;
  }
  if (arguments.literal || !is_script(arguments.command[0])) return std::string{};
  const Interpreter python = PCTX_TRY(find_python());
  if (!python.prefix.empty()) policy.binds.push_back({python.prefix, python.prefix, false});
  return python.path;
}

// Before the box is made: its Python would say something about a place that the caller does not know.
Result<void> check_script(const Policy& policy, const std::string& path, const struct stat& status) {
  if (!S_ISREG(status.st_mode))
    return usage_error(fmt::format("the script {} is no ordinary file", path),
                       "write it to one, or read it from standard input: pctx-sandbox run - < SCRIPT");
  if (::access(path.c_str(), R_OK) != 0)
    return usage_error(os_error(fmt::format("the script {} cannot be read", path)).what,
                       "let this user read it, or name a copy");
  return check_stays(policy, "the script", path, sys::resolved(path));
}

// As `uv run`: a script, standard input, or any command.
Result<void> resolve_command(const RunArguments& arguments, Prepared& prepared) {
  if (arguments.command.empty())
    return usage_error("no command is given", "write pctx-sandbox run -- COMMAND, run script.py, or run - < script");
  Command& command = prepared.command;
  command.argv = arguments.command;
  std::string& first = command.argv[0];
  if (first.empty()) return usage_error("the command is an empty word", "name a command: a variable may be unset");
  const std::string python = PCTX_TRY(provide_python(arguments, prepared));
  if (arguments.literal || !is_script(first)) return {};
  if (first != "-") {
    struct stat status {};
    if (::stat(first.c_str(), &status) == 0) {
      PCTX_TRY(check_script(prepared.policy, first, status));
      const std::size_t slash = first.rfind('/');
      const std::string target = "/script/" + first.substr(slash == std::string::npos ? 0 : slash + 1);
      prepared.policy.binds.push_back({first, target, false});
      first = target;
    } else if (first.front() != '/') {
      Error error = os_error(fmt::format("the script {} cannot be read", first));
      error.kind = ErrorKind::usage;
      error.hint = fmt::format("check its path; for a command of the box write pctx-sandbox run -- {}", first);
      return error;
    }
  }
  command.argv.insert(command.argv.begin(), python);
  return {};
}

}  // namespace

Result<Prepared> resolve(const RunArguments& arguments) {
  Prepared prepared;
  prepared.policy = PCTX_TRY(to_policy(arguments));
  prepared.given = prepared.policy.binds.size();
  PCTX_TRY(resolve_command(arguments, prepared));
  return prepared;
}

Result<Prepared> prepare(const RunArguments& arguments, bool to_run) {
  Prepared prepared = PCTX_TRY(resolve(arguments));
  CompileInputs inputs;
  inputs.terminal = arguments.tty;
  // Not for what is refused anyway, and not before an Environment was built: that takes its time, and boxes of its own.
  if (to_run && validate(prepared.policy))
    prepared.head = HeadStart::begin(prepared.policy, !arguments.json && outputs_are_one());
  const CgroupHost* cgroups = prepared.head ? &prepared.head->cgroup_host() : nullptr;
  prepared.plan = PCTX_TRY(compile_here(prepared.policy, std::move(inputs), cgroups));
  return prepared;
}

}  // namespace pctx::cli
