#include "pool/spec.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/json.h"

namespace pctx {
namespace {

constexpr const char* kSupport = "/run/pctx";

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Where the box has the Environment: where the host has it, but for the folders that every box has of its own and that
// are mounted over what the template lends.
std::string place_of(const std::string& environment) {
  for (const char* own : {"/tmp/", "/dev/", "/home/sandbox/"})
    if (environment.starts_with(own)) return fmt::format("{}/environment", kSupport);
  return environment;
}

}  // namespace

void lend_support(const PoolSpec& spec, Policy& policy) {
  for (const std::string& path : spec.support) {
    // Of our package only the part that runs inside.
    const bool ours = name_of(path) == "pctx_sandbox";
    policy.binds.push_back(
        {ours ? path + "/guest" : path, fmt::format("{}/{}", kSupport, ours ? "guest" : name_of(path)), false});
  }
  if (spec.scripts) return;  // the policy lends the interpreter
  if (!spec.environment.empty()) policy.binds.push_back({spec.environment, place_of(spec.environment), false});
  const std::size_t bin = spec.python.rfind("/bin/");
  if (!spec.python.starts_with("/usr/") && bin != std::string::npos && bin > 0)
    policy.binds.push_back({spec.python.substr(0, bin), spec.python.substr(0, bin), false});
}

Command zygote_command(const PoolSpec& spec) {
  const std::uint32_t threads = std::max(1U, (spec.policy.limits.cpus + 999) / 1000);
  if (spec.scripts) {
    std::vector<std::string> argv{spec.python, fmt::format("{}/guest/scripts.py", kSupport), std::to_string(threads)};
    argv.insert(argv.end(), spec.preload.begin(), spec.preload.end());
    return {argv};
  }
  const Json config{{"environment", spec.environment}, {"threads", threads}, {"preload", spec.preload}};
  std::vector<std::string> argv{spec.environment.empty() ? spec.python : place_of(spec.environment) + "/bin/python",
                                "-I"};
  if (spec.environment.empty()) argv.push_back("-S");
  argv.push_back(fmt::format("{}/guest/zygote.py", kSupport));
  argv.push_back(config.dump());
  return {argv};
}

std::string PoolSpec::family() const {
  PoolSpec any = *this;
  any.generation = 0;
  return any.key();
}

std::string PoolSpec::key() const {
  Json json{{"python", python}, {"environment", environment}, {"preload", preload}, {"support", support}};
  json["generation"] = generation;
  json["scripts"] = scripts;
  json["folder"] = folder;
  json["policy"] = policy_to_json(policy);
  return json.dump();
}

std::uint64_t memory_of_zygote(const Plan& plan) { return std::max(plan.policy.limits.memory, 4_GiB); }

Plan limits_of_zygote(const Plan& plan) {
  Plan own;
  own.cgroup = plan.cgroup;
  own.policy = plan.policy;
  own.cgroup_writes = plan.cgroup_writes;
  const std::string memory = std::to_string(memory_of_zygote(plan));
  // Each Worker in the making is two for a moment: a child that enters its box, and the child of that one.
  const std::string processes = std::to_string(plan.policy.limits.pids + 1 + 2 * kMostWorkers);
  for (CgroupWrite& write : own.cgroup_writes) {
    if (write.value == std::to_string(plan.policy.limits.memory) && write.controller == "memory") write.value = memory;
    if (write.controller == "pids") write.value = processes;
  }
  return own;
}

}  // namespace pctx
