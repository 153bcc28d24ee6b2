// The store of Environments: a folder of the user's own. `env/KEY` is a published Environment, `new/KEY-N` one that is
// being built, `old/KEY-N` one that was replaced while in use, `shared` what several have in common. Two locks for each
// key, both outside of what a box is ever lent: `build` is held by whoever builds it, `use` is shared by whoever uses
// it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/units.h"
#include "env/record.h"
#include "policy/policy.h"

namespace pctx::env {

struct Environment {
  std::string path;
  Record record;
  Fd in_use;  // while it is open, nobody removes the Environment

  std::string python() const { return path + "/bin/python"; }
  std::string site_packages() const { return path + "/lib/python" + record.python.minor() + "/site-packages"; }
};

// Lends the Environment, and its interpreter where a box does not have it.
void lend_environment(Policy& policy, const Environment& environment);

struct StoredEnvironment {
  Record record;
  std::int64_t last_use = 0;  // seconds since 1970
  bool damaged = false;
};

struct PruneLimits {
  std::optional<std::uint64_t> max_size;  // of all Environments together, the longest unused go first
  std::optional<Millis> older_than;       // since the last use
  bool all = false;
  bool dry_run = false;
};

struct Pruned {
  std::vector<StoredEnvironment> removed;
  std::vector<std::string> in_use;  // keys that would have gone
  std::uint64_t bytes = 0, bytes_left = 0;
};

// Which of them go: pure. Returns positions in `stored`.
std::vector<std::size_t> choose_to_prune(const std::vector<StoredEnvironment>& stored, const PruneLimits& limits,
                                         std::int64_t now);

class Store {
 public:
  // PCTX_SANDBOX_CACHE_DIR, else `pctx-sandbox` in the XDG cache folder. Makes it; refuses one that others may write
  // to.
  static Result<Store> open();

  // The Environment, ready for use, or nothing if it is not there or damaged.
  Result<std::optional<Environment>> find(const std::string& key) const;

  // Waits until nobody else builds `key`. `on_wait` is called once if there is somebody.
  template <class OnWait>
  Result<Fd> lock_build(const std::string& key, OnWait on_wait) const {
    if (auto free = try_lock(key, "build", true)) return free;
    on_wait();
    return wait_for_build(key);
  }

  // A folder for a build, swept when its builder is gone. Its parts: `tree`, which becomes the Environment.
  Result<std::string> make_staging(const std::string& key) const;
  // By one rename (or exchange, over a damaged one) the tree of `staging` is the Environment. The caller holds the
  // lock.
  Result<Environment> publish(const std::string& key, const std::string& staging) const;

  Result<std::vector<StoredEnvironment>> list() const;
  Result<Pruned> prune(const PruneLimits& limits) const;
  // What killed builds have left.
  void sweep() const;

  Result<Fd> open_shared() const;  // files that Environments have in common, see share.h

  std::string environment_path(const std::string& key) const { return folder_ + "/env/" + key; }
  std::string memory() const { return folder_ + "/python"; }
  const std::string& folder() const { return folder_; }

 private:
  explicit Store(std::string folder) : folder_(std::move(folder)) {}
  Result<Fd> try_lock(const std::string& key, const char* kind, bool exclusive) const;
  Result<Fd> wait_for_build(const std::string& key) const;
  Result<bool> remove(const std::string& key) const;
  void sweep_folder(const char* name, const char* lock) const;

  std::string folder_;  // absolute, links resolved
};

}  // namespace pctx::env
