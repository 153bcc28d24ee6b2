// The options of `run` and `explain`, as typed; and their way to a Policy and a Command.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/verbs.h"
#include "launch/spawn.h"
#include "plan/plan.h"
#include "policy/policy.h"

namespace pctx::cli {

struct RunArguments {
  std::optional<std::string> memory, cpus, pids, timeout, cpu_time, disk, inodes, output, files, io_read, io_write;
  std::optional<std::string> mnt, workdir, hostname, uid, network, policy, seccomp, report, allow_degraded, require;
  std::vector<std::string> ro, rw, tmpfs, env;
  bool tty = false, json = false, changed = false, print_policy = false, quiet = false;
  std::vector<std::string> command;
  bool literal = false;  // the command stood behind "--"
};

// Adds the options of `run` to `verb`, reads them into `arguments` and then calls `act`.
void add_run_options(CLI::App& verb, const Words& words, const std::shared_ptr<RunArguments>& arguments,
                     std::function<void()> act);

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
