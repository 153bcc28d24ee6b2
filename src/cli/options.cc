#include "cli/options.h"

#include <cstdlib>
#include <variant>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "sys/files.h"

namespace pctx::cli {
namespace {

using Text = std::optional<std::string> RunArguments::*;
using List = std::vector<std::string> RunArguments::*;
using Switch = bool RunArguments::*;

struct Option {
  const char* group;
  const char* names;
  const char* value;  // what stands for the value in the help; nullptr for a switch
  std::variant<Text, List, Switch> field;
  const char* help;
};

constexpr const char* kLimits = "Limits";
constexpr const char* kFiles = "Files";
constexpr const char* kPackages = "Python packages";
constexpr const char* kIdentity = "Identity";
constexpr const char* kNetwork = "Network";
constexpr const char* kPolicy = "Policy";
constexpr const char* kTerminal = "Terminal";
constexpr const char* kResult = "The run and its result";  // `explain` has neither

constexpr Option kOptions[] = {
    {kLimits, "--memory", "SIZE", &RunArguments::memory, "Memory, swap and tmpfs included (default 1G)"},
    {kLimits, "--cpus", "N", &RunArguments::cpus, "CPUs, also parts of one (default 1)"},
    {kLimits, "--pids", "N", &RunArguments::pids, "Processes and threads (default 64)"},
    {kLimits, "--timeout", "TIME", &RunArguments::timeout, "Wall-clock time; 0 is no limit (default 30s)"},
    {kLimits, "--cpu-time", "TIME", &RunArguments::cpu_time, "CPU time of all processes together"},
    {kLimits, "--disk", "SIZE", &RunArguments::disk,
     "/tmp, /dev/shm and the home folder together, and the largest size of any one file (default 256M)"},
    {kLimits, "--inodes", "N", &RunArguments::inodes, "Files and folders there (default 20000)"},
    {kLimits, "--output", "SIZE", &RunArguments::output, "stdout and stderr together (default 16M)"},
    {kLimits, "--files", "N", &RunArguments::files, "Open files of one process (default 512)"},
    {kLimits, "--io-read", "SIZE", &RunArguments::io_read, "Bytes per second read from disks (cgroup v2)"},
    {kLimits, "--io-write", "SIZE", &RunArguments::io_write, "Bytes per second written to disks (cgroup v2)"},
    {kFiles, "--mnt", "DIR", &RunArguments::mnt, "Host folder, read-write at /mnt and the working folder"},
    {kFiles, "--ro", "HOST[:GUEST]", &RunArguments::ro, "Lend a host file or folder read-only"},
    {kFiles, "--rw", "HOST:GUEST", &RunArguments::rw, "Lend a host file or folder read-write"},
    {kFiles, "--tmpfs", "GUEST[:SIZE]", &RunArguments::tmpfs, "Empty writable folder with a size of its own"},
    {kFiles, "--workdir", "GUEST", &RunArguments::workdir, "Working folder in the box"},
    {kPackages, "--with", "REQ", &RunArguments::with, "A package to have, found or built; repeatable"},
    {kPackages, "--venv", "DIR", &RunArguments::venv, "A virtualenv to run with, lent read-only"},
    {kPackages, "--python", "FILE", &RunArguments::python,
     "Interpreter of the script or the packages (default: the system's)"},
    {kIdentity, "--env", "NAME=VALUE", &RunArguments::env, "Set a variable; nothing is inherited"},
    {kIdentity, "--hostname", "NAME", &RunArguments::hostname, "Host name in the box (default sandbox)"},
    {kIdentity, "--uid", "ID", &RunArguments::uid,
     "User id in the box (default 1000); 0 is root there and nobody on the host"},
    {kNetwork, "--network", "MODE", &RunArguments::network,
     "none (default); allow:HOST[:PORT],... only these, by name; host: everything this machine reaches"},
    {kNetwork, "--network-private", "CIDR,...", &RunArguments::network_private,
     "Private addresses that an allowed name may have, which are closed otherwise"},
    {kNetwork, "--net-rate", "SIZE", &RunArguments::net_rate, "Bytes per second in each direction"},
    {kNetwork, "--net-bytes", "SIZE", &RunArguments::net_bytes, "Bytes that may leave the box in all"},
    {kNetwork, "--net-connections", "N", &RunArguments::net_connections,
     "Connections that may be open at once (default 256)"},
    {kPolicy, "--policy", "FILE", &RunArguments::policy,
     "Read a policy (JSON); options override it, and lists add to its lists"},
    {kPolicy, "--backend", "BACKEND", &RunArguments::backend,
     "What makes the box: namespaces, podman, lima, or auto (default), the first of the first two that works"},
    {kPolicy, "--lend", "DIR", &RunArguments::lend,
     "With a container as backend: it has this folder itself, read-only, and --ro needs no copy; repeatable"},
    {kPolicy, "--seccomp", "FILE", &RunArguments::seccomp, "Replace the system call filter by an OCI profile"},
    {kPolicy, "--apparmor", "NAME", &RunArguments::apparmor, "AppArmor profile to enter, which must be loaded"},
    {kPolicy, "--allow-degraded", "LAYER,...", &RunArguments::allow_degraded,
     "Layers that may be missing on this host, comma-separated"},
    {kPolicy, "--require", "LAYER,...", &RunArguments::require, "Layers without which nothing runs, comma-separated"},
    {kTerminal, "-t,--tty", nullptr, &RunArguments::tty, "Give the guest a terminal (a pty of the box's own)"},
    {kResult, "--changed", nullptr, &RunArguments::changed,
     "List what changed under /mnt, on stderr and in the report"},
    {kResult, "--json", nullptr, &RunArguments::json, "Print one JSON object: outcome, output and receipt"},
    {kResult, "--report", "FILE", &RunArguments::report, "Write outcome and receipt to FILE as JSON"},
    {kResult, "--print-policy", nullptr, &RunArguments::print_policy, "Print the policy of this line as JSON and stop"},
    {kResult, "-q,--quiet", nullptr, &RunArguments::quiet,
     "No notices of ours on stderr, not even of --network host; with --report not a word"},
    {kResult, "--die-with-parent", nullptr, &RunArguments::die_with_parent,
     "End with the process that started this one"},
};

// Describing an option to CLI11 costs 5 microseconds, thirty of them a twentieth of a whole run: only those that stand
// on the line are described, and all of them when help is asked for or something else must explain itself.
bool is_needed(const Option& option, const Words& words) {
  for (std::string_view names = option.names; !names.empty();) {
    const std::size_t comma = names.find(',');
    const std::string_view name = names.substr(0, comma);
    names.remove_prefix(comma == std::string_view::npos ? names.size() : comma + 1);
    for (const std::string& word : words.options)
      if (word.starts_with(name) || (name.size() == 2 && word.size() > 1 && word[0] == '-' && word[1] != '-'))
        return true;
  }
  return false;
}

bool asks_for_help(const Words& words) {
  if (words.options.empty() || (words.options[0] != "run" && words.options[0] != "explain")) return true;
  for (const std::string& word : words.options)
    if (word == "-h" || word.starts_with("--help")) return true;
  return false;
}

const Option* find_option(std::string_view word) {
  for (const Option& option : kOptions) {
    const std::string_view names = option.names;
    if (word.starts_with("--") && names.ends_with(word) &&
        (names.size() == word.size() || names[names.size() - word.size() - 1] == ','))
      return &option;
  }
  return nullptr;
}

bool is_given(std::string_view name, const RunArguments& arguments) {
  const Option* option = find_option(name);
  if (option == nullptr) return false;
  if (const Text* text = std::get_if<Text>(&option->field)) return (arguments.**text).has_value();
  if (const List* list = std::get_if<List>(&option->field)) return !(arguments.**list).empty();
  return arguments.*std::get<Switch>(option->field);
}

// A value that nobody could take for anything else.
bool is_plain_value(std::string_view word) { return !word.empty() && word[0] != '-' && word[0] != '['; }

void describe(CLI::App& verb, const Option& option, RunArguments& arguments) {
  CLI::Option* added = nullptr;
  if (const Text* text = std::get_if<Text>(&option.field))
    added = verb.add_option(option.names, arguments.**text, option.help);
  else if (const List* list = std::get_if<List>(&option.field))
    // One value each, repeatable: CLI11 would otherwise take the command's words as further values.
    added = verb.add_option(option.names, arguments.**list, option.help)
                ->expected(1)
                ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                ->allow_extra_args(false);
  else
    added = verb.add_flag(option.names, arguments.*std::get<Switch>(option.field), option.help);
  added->group(option.group);
  if (option.value != nullptr) added->type_name(option.value);
}

}  // namespace

Error nothing_to_list() {
  return usage_error("--changed lists what changed under /mnt, and there is no --mnt", "add --mnt DIR");
}

RunArguments default_arguments() {
  RunArguments arguments;
  arguments.may_build = true;
  return arguments;
}

std::optional<RunArguments> read_plain_run(const Words& words) {
  if (!words.literal || words.command.empty() || words.options.empty() || words.options[0] != "run") return {};
  RunArguments arguments = default_arguments();
  for (std::size_t i = 1; i < words.options.size(); ++i) {
    const std::string_view word = words.options[i];
    const std::size_t equals = word.find('=');
    const Option* option = find_option(word.substr(0, equals));
    if (option == nullptr) return {};
    if (const Switch* flag = std::get_if<Switch>(&option->field)) {
      if (equals != word.npos) return {};
      arguments.** flag = true;
      continue;
    }
    if (equals == word.npos && ++i == words.options.size()) return {};
    const std::string_view value = equals == word.npos ? words.options[i] : word.substr(equals + 1);
    if (!is_plain_value(value)) return {};
    if (const List* list = std::get_if<List>(&option->field)) {
      (arguments.**list).emplace_back(value);
    } else {
      std::optional<std::string>& text = arguments.*std::get<Text>(option->field);
      if (text) return {};  // said twice
      text = value;
    }
  }
  arguments.command = words.command;
  arguments.literal = true;
  return arguments;
}

std::optional<bool> run_option(std::string_view name) {
  const Option* option = find_option(name);
  if (option == nullptr) return std::nullopt;
  return !std::holds_alternative<Switch>(option->field);
}

void add_run_options(Verb described, const Words& words, const std::shared_ptr<RunArguments>& arguments, int& status,
                     std::function<Result<int>()> act) {
  CLI::App& verb = described.app();
  verb.prefix_command();  // the first word that is no option starts the command
  const bool all = asks_for_help(words);
  const bool runs = verb.get_name() == "run";
  for (const Option& option : kOptions)
    if ((runs || option.group != kResult) && (all || is_needed(option, words))) describe(verb, option, *arguments);
  described.act(status, [&verb, &words, arguments, act = std::move(act)] {
    arguments->command = verb.remaining();
    if (!arguments->command.empty() && arguments->command[0].size() > 1 && arguments->command[0][0] == '-')
      throw CLI::ExtrasError("run", {arguments->command[0]});
    arguments->literal = words.literal && arguments->command.empty();
    if (words.literal && !arguments->literal) arguments->command.push_back("--");  // the command's own
    arguments->command.insert(arguments->command.end(), words.command.begin(), words.command.end());
    return act();
  });
}

namespace {

template <class Field, class Parse>
Result<void> set(const char* option, const std::optional<std::string>& text, Field& field, Parse parse) {
  if (text) field = PCTX_TRY(named(option, parse(*text)));
  return {};
}

// --venv "$UNSET" must not mean: without one.
Result<void> check_not_empty(const RunArguments& a) {
  const auto check = [](const char* option, const std::string& path) -> Result<void> {
    if (!path.empty()) return {};
    return usage_error(fmt::format("{}: the path is empty", option),
                       "name a file or folder of this host, or leave the option out");
  };
  for (const auto& [option, path] :
       {std::pair{"--policy", &a.policy}, {"--seccomp", &a.seccomp}, {"--venv", &a.venv}, {"--python", &a.python}})
    if (*path) PCTX_TRY(check(option, **path));
  for (const std::string& folder : a.lend) PCTX_TRY(check("--lend", folder));
  return {};
}

}  // namespace

Result<Policy> to_policy(const RunArguments& a) {
  PCTX_TRY(check_not_empty(a));
  Policy policy;
  if (a.policy) {
    const std::string text = PCTX_TRY(sys::read_named("--policy", *a.policy, kMaxPolicyBytes));
    policy = PCTX_TRY(policy_from_json(text, fmt::format("--policy {}", *a.policy)));
    std::erase_if(policy.names.keys, [&](const std::string& key) { return is_given(option_of(key), a); });
    // A policy that a program of ours wrote for its container: what was typed was options, there.
    if (std::getenv("PCTX_SANDBOX_INSIDE") != nullptr) policy.names = {};
  }
  Limits& limits = policy.limits;
  PCTX_TRY(set("--memory", a.memory, limits.memory, parse_size));
  PCTX_TRY(set("--cpus", a.cpus, limits.cpus, parse_cpus));
  PCTX_TRY(set("--timeout", a.timeout, limits.timeout, parse_duration));
  PCTX_TRY(set("--cpu-time", a.cpu_time, limits.cpu_time, parse_duration));
  PCTX_TRY(set("--disk", a.disk, limits.disk, parse_size));
  PCTX_TRY(set("--output", a.output, limits.output, parse_size));
  PCTX_TRY(set("--io-read", a.io_read, limits.io_read, parse_size));
  PCTX_TRY(set("--io-write", a.io_write, limits.io_write, parse_size));
  PCTX_TRY(set("--pids", a.pids, limits.pids, parse_count));
  PCTX_TRY(set("--inodes", a.inodes, limits.inodes, parse_count));
  PCTX_TRY(set("--files", a.files, limits.files, parse_count));
  if (a.mnt) policy.mnt = *a.mnt;
  for (const std::string& text : a.ro) policy.binds.push_back(PCTX_TRY(named("--ro", parse_bind(text, false))));
  for (const std::string& text : a.rw) policy.binds.push_back(PCTX_TRY(named("--rw", parse_bind(text, true))));
  for (const std::string& text : a.tmpfs) policy.tmpfs.push_back(PCTX_TRY(named("--tmpfs", parse_tmpfs(text))));
  for (const std::string& text : a.env) {
    auto variable = PCTX_TRY(named("--env", parse_env(text)));
    std::erase_if(policy.env, [&](const auto& known) { return known.first == variable.first; });
    policy.env.push_back(std::move(variable));
  }
  if (a.workdir && a.workdir->empty())
    return usage_error("--workdir: the path is empty", "name a folder of the box, or leave the option out");
  policy.workdir = a.workdir.value_or(policy.workdir);
  policy.hostname = a.hostname.value_or(policy.hostname);
  if (a.uid) {
    const std::uint64_t uid = PCTX_TRY(named("--uid", parse_count(*a.uid)));
    policy.uid = PCTX_TRY(named("--uid", check_uid(uid)));
  }
  if (a.network) PCTX_TRY(named("--network", parse_network(*a.network, policy)));
  PCTX_TRY(set("--network-private", a.network_private, policy.allowed.open_private, parse_private_ranges));
  PCTX_TRY(set("--net-rate", a.net_rate, policy.allowed.rate, parse_size));
  PCTX_TRY(set("--net-bytes", a.net_bytes, policy.allowed.bytes, parse_size));
  PCTX_TRY(set("--net-connections", a.net_connections, policy.allowed.connections, parse_count));
  if (a.seccomp) policy.seccomp = *a.seccomp;
  if (a.apparmor) policy.apparmor = *a.apparmor;
  for (const std::string& text : a.allow_degraded)
    policy.allow_degraded |= PCTX_TRY(named("--allow-degraded", parse_layers(text)));
  for (const std::string& text : a.require) policy.require |= PCTX_TRY(named("--require", parse_layers(text)));
  return policy;
}

}  // namespace pctx::cli
