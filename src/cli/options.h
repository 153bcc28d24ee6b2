// The options of `run` and `explain`, as typed; and their way to a Policy and a Command.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "box/head_start.h"
#include "cli/verbs.h"
#include "env/store.h"
#include "launch/spawn.h"
#include "plan/plan.h"
#include "policy/policy.h"

namespace pctx::cli {

struct RunArguments {
  std::optional<std::string> memory, cpus, pids, timeout, cpu_time, disk, inodes, output, files, io_read, io_write;
  std::optional<std::string> mnt, workdir, hostname, uid, network, network_private, net_rate, net_bytes,
      net_connections, policy, seccomp, apparmor, report, python, venv, backend;
  std::vector<std::string> ro, rw, tmpfs, env, with, lend, allow_degraded, require;
  bool tty = false, json = false, changed = false, print_policy = false, quiet = false;
  bool die_with_parent = false;
  std::vector<std::string> command;
  bool literal = false;    // the command stood behind "--"
  bool may_build = false;  // an Environment that is missing is built
  std::string built_by;    // the backend that builds it where this host cannot; empty: none
};

// --changed without a folder to look at.
Error nothing_to_list();

// What `run` starts from, before any option.
RunArguments default_arguments();

// A line as programs write it: whole names, with values that nobody could take for options, and the command behind
// "--". Reading that takes no description of the options, which costs more time than planning the box. Everything else,
// and every mistake, is for those who can explain it.
std::optional<RunArguments> read_plain_run(const Words& words);

// Whether an option of `run` by this whole name takes a value; nullopt if there is none.
std::optional<bool> run_option(std::string_view name);

// Adds the options of `run` to `verb`, reads them into `arguments` and then calls `act`.
void add_run_options(Verb verb, const Words& words, const std::shared_ptr<RunArguments>& arguments, int& status,
                     std::function<Result<int>()> act);

// The policy file first, then every option over it.
Result<Policy> to_policy(const RunArguments& arguments);

struct Prepared {
  Policy policy;
  std::size_t given = 0;  // so many of its binds are the caller's, the first ones; the others came with the interpreter
  Command command;
  Plan plan;
  std::optional<env::Environment> environment;  // in use as long as this lives
  std::unique_ptr<HeadStart> head;              // may be null
};
// The policy and the command of a line, with whatever it takes to have them: packages, an interpreter.
Result<Prepared> resolve(const RunArguments& arguments);
// Looks at the host and compiles: everything that comes before a box. `to_run`: the box is begun meanwhile.
Result<Prepared> prepare(const RunArguments& arguments, bool to_run = false);

// The same line in another backend, whose box cannot have the host's folders: copies go in, changes come back.
// `report`: a descriptor, -1 for none.
Result<int> run_elsewhere(const backend::Choice& choice, const RunArguments& arguments, int report);

}  // namespace pctx::cli
