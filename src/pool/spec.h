// What a pool is for, and what its Zygote is given and told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/spawn.h"
#include "policy/policy.h"

namespace pctx {

// What a caller asks a Worker of: the pool's key is all of it.
struct PoolSpec {
  std::string python;                // the interpreter, as the host sees it
  std::string environment;           // a venv, or empty
  std::uint64_t generation = 0;      // changes when the Environment is built again in its place
  std::vector<std::string> preload;  // modules to import in the Zygote
  std::vector<std::string> support;  // our own guest package and the caller's cloudpickle
  bool scripts = false;              // Workers run scripts, as `python script.py` does; `python` is as the box sees it
  bool folder = false;               // each caller lends a folder of its own
  Policy policy;

  std::string key() const;
  std::string family() const;  // the key of all its generations
};

// Lends the Zygote and its Workers our own package and the caller's cloudpickle, the Environment, and an interpreter
// that lives outside /usr.
void lend_support(const PoolSpec& spec, Policy& policy);
Command zygote_command(const PoolSpec& spec);

// In one pool, for the bounds below.
inline constexpr std::uint64_t kMostWorkers = 128;

// A Zygote is bound as a Worker is, but for its memory: packages and what they read at import are not the call's; and
// for its processes: on cgroup v2 Workers are counted with it until they have been moved to their own.
std::uint64_t memory_of_zygote(const Plan& plan);
Plan limits_of_zygote(const Plan& plan);

}  // namespace pctx
