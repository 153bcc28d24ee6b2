#include "cli/options.h"

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx::cli {

void add_run_options(CLI::App& app, RunArguments& a) {
  const char* limits = "Limits";
  app.add_option("--memory", a.memory, "Memory, swap and tmpfs included (default 1G)")->group(limits)->type_name("SIZE");
  app.add_option("--cpus", a.cpus, "CPUs, also parts of one (default 1)")->group(limits)->type_name("N");
  app.add_option("--pids", a.pids, "Processes and threads (default 64)")->group(limits)->type_name("N");
  app.add_option("--timeout", a.timeout, "Wall-clock time; 0 is no limit (default 30s)")->group(limits)->type_name("TIME");
  app.add_option("--cpu-time", a.cpu_time, "CPU time of all processes together")->group(limits)->type_name("TIME");
  app.add_option("--disk", a.disk, "/tmp, /dev/shm and the home folder together (default 256M)")
      ->group(limits)
      ->type_name("SIZE");
  app.add_option("--inodes", a.inodes, "Files and folders there (default 20000)")->group(limits)->type_name("N");
  app.add_option("--output", a.output, "stdout and stderr together (default 16M)")->group(limits)->type_name("SIZE");
  app.add_option("--files", a.files, "Open files of one process (default 512)")->group(limits)->type_name("N");
  app.add_option("--io-read", a.io_read, "Bytes per second read from disks (cgroup v2)")->group(limits)->type_name("SIZE");
  app.add_option("--io-write", a.io_write, "Bytes per second written to disks (cgroup v2)")
      ->group(limits)
      ->type_name("SIZE");

  const char* files = "Files";
  app.add_option("--mnt", a.mnt, "Host folder, read-write at /mnt and the working folder")->group(files)->type_name("DIR");
  // One value each, repeatable: CLI11 would otherwise take the command's words as further values.
  app.add_option("--ro", a.ro, "Lend a host file or folder read-only")
      ->group(files)
      ->type_name("HOST[:GUEST]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--rw", a.rw, "Lend a host file or folder read-write")
      ->group(files)
      ->type_name("HOST:GUEST")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--tmpfs", a.tmpfs, "Empty writable folder with a size of its own")
      ->group(files)
      ->type_name("GUEST[:SIZE]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--workdir", a.workdir, "Working folder in the box")->group(files)->type_name("DIR");
  app.add_flag("--changed", a.changed, "List what changed under /mnt, on stderr and in the report")->group(files);

  const char* identity = "Identity";
  app.add_option("--env", a.env, "Set a variable; nothing is inherited")
      ->group(identity)
      ->type_name("NAME=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--hostname", a.hostname, "Host name in the box (default sandbox)")->group(identity)->type_name("NAME");
  app.add_option("--uid", a.uid, "User id in the box (default 1000); 0 is root there and nobody on the host")
      ->group(identity)
      ->type_name("ID");

  app.add_option("--network", a.network, "none (default), or host: everything this machine reaches")
      ->group("Network")
      ->type_name("MODE");

  const char* policy = "Policy";
  app.add_option("--policy", a.policy, "Read a policy (JSON); options override it")->group(policy)->type_name("FILE");
  app.add_option("--seccomp", a.seccomp, "Replace the system call filter by an OCI profile")
      ->group(policy)
      ->type_name("FILE");
  app.add_option("--allow-degraded", a.allow_degraded, "Layers that may be missing on this host, comma-separated")
      ->group(policy)
      ->type_name("LAYER,...");
  app.add_option("--require", a.require, "Layers without which nothing runs, comma-separated")
      ->group(policy)
      ->type_name("LAYER,...");
  app.add_flag("--print-policy", a.print_policy, "Print the policy of this line as JSON and stop")->group(policy);

  const char* result = "Terminal and result";
  app.add_flag("-t,--tty", a.tty, "Give the guest a terminal (a pty of the box's own)")->group(result);
  app.add_flag("--json", a.json, "Print one JSON object: outcome, output and receipt")->group(result);
  app.add_option("--report", a.report, "Write outcome and receipt to FILE as JSON")->group(result)->type_name("FILE");
  app.add_flag("-q,--quiet", a.quiet, "No notices of ours on stderr")->group(result);
}

namespace {

template <class T>
Result<T> named(const char* option, Result<T> value) {
  if (value) return value;
  Error error = std::move(value).error();
  error.what = fmt::format("{}: {}", option, error.what);
  return error;
}

template <class Field, class Parse>
Result<void> set(const char* option, const std::optional<std::string>& text, Field& field, Parse parse) {
  if (text) field = PCTX_TRY(named(option, parse(*text)));
  return {};
}

}  // namespace

Result<Policy> to_policy(const RunArguments& a) {
  Policy policy;
  if (a.policy) {
    const std::string text = PCTX_TRY(named("--policy", sys::read_file(*a.policy, kMaxPolicyBytes)));
    policy = PCTX_TRY(policy_from_json(text));
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
  limits.pids = a.pids.value_or(limits.pids);
  limits.inodes = a.inodes.value_or(limits.inodes);
  limits.files = a.files.value_or(limits.files);
  if (a.mnt) policy.mnt = *a.mnt;
  for (const std::string& text : a.ro) policy.binds.push_back(PCTX_TRY(named("--ro", parse_bind(text, false))));
  for (const std::string& text : a.rw) policy.binds.push_back(PCTX_TRY(named("--rw", parse_bind(text, true))));
  for (const std::string& text : a.tmpfs) policy.tmpfs.push_back(PCTX_TRY(named("--tmpfs", parse_tmpfs(text))));
  for (const std::string& text : a.env) {
    auto variable = PCTX_TRY(named("--env", parse_env(text)));
    std::erase_if(policy.env, [&](const auto& known) { return known.first == variable.first; });
    policy.env.push_back(std::move(variable));
  }
  policy.workdir = a.workdir.value_or(policy.workdir);
  policy.hostname = a.hostname.value_or(policy.hostname);
  policy.uid = a.uid.value_or(policy.uid);
  PCTX_TRY(set("--network", a.network, policy.network, parse_network));
  if (a.seccomp) policy.seccomp = *a.seccomp;
  if (!a.allow_degraded.empty())
    policy.allow_degraded |= PCTX_TRY(named("--allow-degraded", parse_layers(a.allow_degraded)));
  if (!a.require.empty()) policy.require |= PCTX_TRY(named("--require", parse_layers(a.require)));
  return policy;
}

}  // namespace pctx::cli
