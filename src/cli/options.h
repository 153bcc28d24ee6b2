// The options of `run` and `explain`, as typed; and their way to a Policy and a Command.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "launch/spawn.h"
#include "plan/plan.h"
#include "policy/policy.h"

namespace pctx::cli {

struct RunArguments {
  std::optional<std::string> memory, cpus, timeout, cpu_time, disk, output, io_read, io_write;
  std::optional<std::uint64_t> pids, inodes, files;
  std::optional<std::string> mnt, workdir, hostname, network, policy, seccomp, report;
  std::optional<std::uint32_t> uid;
  std::vector<std::string> ro, rw, tmpfs, env;
  std::string allow_degraded, require;
  bool tty = false, json = false, changed = false, print_policy = false, quiet = false;
  std::vector<std::string> command;
  bool literal = false;  // the command stood behind "--"
};

void add_run_options(CLI::App& app, RunArguments& arguments);

// The policy file first, then every option over it.
Result<Policy> to_policy(const RunArguments& arguments);

struct Prepared {
  Policy policy;
  Command command;
  Plan plan;
};
// Looks at the host and compiles: everything that comes before a box.
Result<Prepared> prepare(const RunArguments& arguments);

}  // namespace pctx::cli
