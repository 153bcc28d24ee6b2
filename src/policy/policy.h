// Policy: what a run may do. Plain data, with defaults that are safe and useful on their own; JSON outside, this
// inside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "policy/layer.h"
#include "policy/names.h"
#include "policy/network.h"

namespace pctx {

struct Limits {
  std::uint64_t memory = 1_GiB;  // swap and tmpfs included
  std::uint32_t cpus = 1000;     // thousandths of a CPU
  std::uint64_t pids = 64;       // processes and threads
  Millis timeout{30'000};        // wall clock; 0 is no limit
  std::optional<Millis> cpu_time;
  std::uint64_t disk = 256_MiB;  // /tmp, /dev/shm and the home folder together
  std::uint64_t inodes = 20'000;
  std::uint64_t output = 16_MiB;         // stdout and stderr together
  std::uint64_t files = 512;             // open files of one process
  std::optional<std::uint64_t> io_read;  // bytes per second
  std::optional<std::uint64_t> io_write;
};

struct Bind {
  std::string source;
  std::string target;
  bool writable = false;
  bool as_is = false;  // the source was looked at, with its links resolved: what one leads to now is something else

  const char* key() const { return writable ? "files.rw" : as_is ? "files.ro_as_is" : "files.ro"; }
};

struct Tmpfs {
  std::string target;
  std::uint64_t size = 64_MiB;
};

enum class Network { none, host, allow };

struct Policy {
  Limits limits;
  std::optional<std::string> mnt;  // host folder, read-write at /mnt
  std::vector<Bind> binds;
  std::vector<Tmpfs> tmpfs;
  std::string workdir;  // empty: /mnt if there is one, else the home folder
  std::vector<std::pair<std::string, std::string>> env;
  std::string hostname = "sandbox";
  std::uint32_t uid = 1000;
  Network network = Network::none;
  NetworkPolicy allowed;                // with Network::allow
  std::optional<std::string> seccomp;   // path of an OCI profile that replaces the default filter
  std::optional<std::string> apparmor;  // name of the AppArmor profile to enter; it must be loaded
  LayerSet require;
  LayerSet allow_degraded;
  Names names;
};

// What people write after --ro, --rw and --tmpfs.
Result<Bind> parse_bind(std::string_view text, bool writable);
Result<Tmpfs> parse_tmpfs(std::string_view text);
Result<std::pair<std::string, std::string>> parse_env(std::string_view text);
// Of an AppArmor profile of ours or our users': also a file's name, and never more than itself in a rule.
bool is_profile_name(std::string_view name);
inline constexpr std::uint64_t kMaxUid = 65533;  // above it is nobody
Result<std::uint32_t> check_uid(std::uint64_t uid);
Result<LayerSet> parse_layers(std::string_view comma_separated);
// none, host, or allow:HOST,HOST…; with the first two, limits of the third that stood there before go.
Result<void> parse_network(std::string_view text, Policy& policy);
Result<std::vector<IpPrefix>> parse_private_ranges(std::string_view comma_separated);

// Reads a policy file, which messages call `file`; keys that are absent keep their defaults. Strict: an unknown key, a
// wrong type or, once validated, a value out of range is an error that names the key.
Result<Policy> policy_from_json(std::string_view text, std::string file = "policy");
// Options take any bytes, and JSON has UTF-8 only: an error if it could not be read back as it is.
Result<void> check_as_json(const Policy& policy);
std::string policy_to_json(const Policy& policy);
inline constexpr std::size_t kMaxPolicyBytes = 1 << 20;

// Everything about a policy that can be judged without looking at the host.
// Whole system folders are never lent. `name` is what messages call the path.
Result<void> check_lendable(std::string_view name, std::string_view path);
Result<void> validate(const Policy& policy);
// Places that the engine itself fills: something lent over them would undo a layer.
bool is_reserved(std::string_view target);

}  // namespace pctx
