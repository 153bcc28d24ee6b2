// Plan: Policy + what this host can do, compiled to exact operations. Pure: the same input gives the same plan, so
// plans are printed by `explain` and compared in tests without any privilege.
#pragma once

#include <linux/filter.h>
#include <sys/resource.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "plan/filter.h"
#include "policy/policy.h"
#include "sys/host.h"

namespace pctx {

// A host path that the policy lends, as it was found: taken at the edge, so that `compile` need not look.
struct LentPath {
  std::string path;  // absolute, links resolved
  bool directory = false;
  uid_t uid = 0;
  gid_t gid = 0;
  unsigned mode = 0;
  ino_t inode = 0;  // with `device` what it is, whatever its path leads to later
  dev_t device = 0;
};

struct CompileInputs {
  std::vector<LentPath> binds;  // one for each of policy.binds
  std::optional<LentPath> mnt;
  std::optional<std::string> seccomp_profile;  // text of the OCI profile
  std::uint32_t instance = 0;                  // tells simultaneous boxes apart; the launcher's pid
  bool terminal = false;                       // --tty
  bool folder = false;                         // of a pool: Workers are lent a folder, at /mnt, when they are leased
  bool pool = false;                           // for a Zygote and the Workers that are forked from it
  bool no_listener = false;  // a container's own listener is in the way: refusals are answered without being recorded
  std::optional<std::string> profile_mode;  // of policy.apparmor, if it is loaded
  bool launch_profile = false;              // that of whoever makes its boxes is loaded, too
  LayerSet missing;  // layers that a probe found this host cannot give (only asked when degrading is allowed)
};

// In the guest's home directory: many programs write there without making it.
inline constexpr const char* kCacheFolder = ".cache";

// One step in building the box's root. Targets are relative to it.
enum class RootOpKind : std::uint8_t { directory, link, file, bind, hold, scratch, tmpfs, proc, devpts, mask };

struct RootOp {
  RootOpKind kind = RootOpKind::directory;
  std::string target;
  std::string text;              // link target, file content, bind source, tmpfs options, a folder inside a scratch one
  std::uint64_t attributes = 0;  // MOUNT_ATTR_*
  unsigned mode = 0755;
  std::uint64_t size = 0;  // file: extended to this many bytes of zeros
  bool directory = false;  // bind, mask: the target is a directory
  bool device = false;     // bind: must be the character device `major:minor`
  unsigned major = 0, minor = 0;
  std::optional<LentPath> lent;  // bind: of the user's choosing
  bool inside = false;           // bind, tmpfs: in something lent. It is not made, and no link may lead there
  bool idmap = false;            // bind: shown in the box as owned by the guest
};

struct LandlockRule {
  std::string path;
  std::uint64_t access = 0;
};

struct ResourceLimit {
  int resource = 0;
  rlim_t value = 0;
  const char* name = "";
};

struct IdMap {
  std::uint32_t inside = 1000;
  std::uint32_t host_uid = 0;
  std::uint32_t host_gid = 0;
  bool by_helper = false;    // newuidmap, newgidmap
  bool drop_groups = false;  // setgroups is ours to call
};

struct CgroupWrite {
  std::string controller;  // v1: the hierarchy; v2: for the reader only
  std::string file;
  std::string value;
  int may_fail_with = 0;  // an error that leaves the limit bound, or the file to newer kernels
};

struct KernelSetting {
  std::string path;  // below /proc/sys
  std::string value;
};

struct LayerState {
  bool on = false;
  std::string detail;     // version or mechanism when on, the cause when off
  std::string hint = {};  // for whoever requires it, if doctor does not know
};

// How a limit binds: "cgroup v2", "rlimit", "watchdog", "tmpfs", ...
struct LimitBinding {
  std::string limit;
  std::string value;
  std::string by;
};

struct Watchdog {
  bool memory = false;
  bool pids = false;
  bool cpu_time = false;
  bool any() const { return memory || pids || cpu_time; }
};

// With an allow-list: what the box's own network holds. Every allowed host has a local address there, behind which the
// relay answers; the relay itself is outside.
struct NetworkPlan {
  IpPrefix own4, own6;          // the box's own addresses
  std::vector<IpPrefix> local;  // answered by the relay
  bool everything_is_local = false;
  std::vector<std::uint16_t> ports;  // TCP; 53 comes on top
  std::vector<sock_filter> watched;  // for packets: attempts that nobody in the box answers
};

struct Plan {
  Policy policy;
  std::uint64_t namespaces = 0;  // CLONE_NEW*, all made by one clone but the cgroup namespace
  bool cgroup_namespace = false;
  std::optional<NetworkPlan> network;  // Network::allow
  IdMap ids;
  std::string root_options;     // of the tmpfs that is root and scratch space
  std::string scratch_options;  // of the tmpfs that is scratch space only, where the root is shared
  std::string attach_point;
  std::vector<RootOp> root;
  std::vector<KernelSetting> settings;          // of the user namespace
  std::vector<KernelSetting> network_settings;  // used where the kernel has them and lets us
  CgroupHost cgroup;
  std::vector<CgroupWrite> cgroup_writes;
  std::vector<ResourceLimit> rlimits;
  unsigned pin_cpus = 0;  // 0: not pinned
  std::uint64_t landlock_handled = 0, landlock_scoped = 0;
  std::vector<LandlockRule> landlock;
  std::vector<sock_filter> filter;
  std::optional<FilterSpec> profile;  // the user's, as it was read: says what is answered to what it refuses
  bool listener = false;              // refusals come to the supervisor, which names them in the report
  std::string apparmor;               // the profile that the guest enters; empty: none
  std::string apparmor_launch;        // the profile of the processes that make the box, until then; empty: none
  bool apparmor_stack = false;        // on top of the one that we are under
  bool keyring = true;
  std::string home, workdir, path;
  std::vector<std::string> env;  // NAME=VALUE
  bool terminal = false;
  bool folder = false;      // see CompileInputs
  bool map_folder = false;  // and show it as owned by the guest
  Watchdog watchdog;
  std::array<LayerState, kLayers.size()> layers;
  std::vector<LimitBinding> bindings;
  std::vector<std::string> notices;  // said once on stderr

  LayerState& layer(Layer which) { return layers[index(which)]; }
  const LayerState& layer(Layer which) const { return layers[index(which)]; }
  // The most that a TCP socket in a network of the box's own may have received and not read: what comes through a relay
  // is slower with less, and what is in no list counts with as much.
  std::uint64_t most_received() const { return network ? 2 << 20 : 512 << 10; }
  // Whether a box tells its supervisor of itself once it stands: its /proc, its locks, its sockets.
  bool sends_probes() const { return watchdog.any() || layer(Layer::proc).on; }
};

// The profile of a pool: what its Zygote enters, and its Workers with it.
std::string zygote_profile(const Policy& policy);
// And of the processes that make a box.
std::string launch_profile(const Policy& policy);

// Where a guest finds programs unless the policy says otherwise.
inline constexpr const char* kDefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

Result<Plan> compile(const Policy& policy, const HostFeatures& host, const CompileInputs& inputs);
// CLONE_NEW* of the plan that compile() makes where the host gives everything.
std::uint64_t wanted_namespaces(const Policy& policy);

// The parts of `compile`, one file each.
Result<void> plan_root(Plan& plan, const HostFeatures& host, const CompileInputs& inputs);
Result<void> plan_limits(Plan& plan, const HostFeatures& host, bool pool);
Result<void> plan_network(Plan& plan);
Result<void> plan_apparmor(Plan& plan, const HostFeatures& host, const CompileInputs& inputs);
void plan_landlock(Plan& plan, const HostFeatures& host, const CompileInputs& inputs);
Result<void> plan_filter(Plan& plan, const HostFeatures& host, const CompileInputs& inputs);

// Where on the host what the box has at `path` lies, an absolute one; empty if it is not the host's.
std::string host_place(const Plan& plan, const std::string& path);

// For people: `pctx-sandbox explain`.
std::string explain(const Plan& plan);

}  // namespace pctx
