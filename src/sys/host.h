// HostFeatures: what this host can do, probed once and then passed as a value. Cheap by design (a cold run pays for
// it): whether namespaces may be created is learnt by creating them, and only a failure asks the slower `diagnose`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pctx {

struct IdRange {
  std::uint32_t start = 0;
  std::uint32_t count = 0;
};

enum class PathKind { absent, file, directory, link };

struct HostPath {
  std::string path;
  PathKind kind = PathKind::absent;
  std::string target;  // of a link
};

enum class CgroupVersion { none, v1, v2 };

// Where boxes' cgroups may be made. In v1 each controller is a hierarchy of its own.
struct CgroupHost {
  CgroupVersion version = CgroupVersion::none;
  std::string why_none;                    // the cause, when version is none
  std::string unified;                     // v2: the directory that gets the box's directory
  std::string memory, pids, cpu, cpuacct;  // v1: likewise, empty where the controller is missing
  bool memsw = false;                      // v1: memory.memsw.* exist
  bool cpu_controller = false;             // a user's systemd may delegate memory and pids without these two
  bool io_controller = false;
  bool own_scope = false;    // v2: `unified` holds ourselves; we must step into the leaf kOwnLeaf first
  bool ask_systemd = false;  // rootless v2: a delegated scope can be had from the user's systemd
};

struct HostFeatures {
  uid_t uid = 0;
  gid_t gid = 0;
  bool privileged = false;  // uid 0 with CAP_SYS_ADMIN and the right to map foreign ids
  int kernel_major = 0;
  int kernel_minor = 0;
  std::string kernel;
  int landlock_abi = 0;
  bool apparmor_profile = false;  // the profiles of guests are loaded
  bool launch_profile = false;    // that of whoever makes boxes, too
  bool apparmor = false;
  std::string apparmor_mode = "enforce";  // theirs
  std::string confined_by;                // the profile that we run under ourselves, empty for none
  CgroupHost cgroup;
  std::uint32_t first_free_id = 0;  // privileged: start of the ids that no account uses
  std::optional<IdRange> subuid, subgid;
  std::string own_uid;  // in a container of ours: what its user is on the host, where that is nobody else; else empty
  bool id_helpers = false;       // newuidmap and newgidmap are installed
  std::string no_set_id;         // why set-id programs such as those two give the caller no rights; empty: they do
  std::vector<HostPath> system;  // the candidates of `system_candidates`, in that order, absent ones left out
  std::string attach_point;      // an existing directory on which the new root is mounted before the pivot
  std::string timezone;          // the caller's TZ where it is the name of a zone, else empty
  unsigned cpus = 1;
  std::uint64_t files = UINT64_MAX;       // as many as a process of ours may ever have open
  std::vector<std::string> mount_points;  // before 5.12 only, when flags cannot be set for a whole tree

  bool kernel_at_least(int major, int minor) const {
    return kernel_major > major || (kernel_major == major && kernel_minor >= minor);
  }
};

// Names of the disks below /dev: block devices that hold something. In the kernel's form, with '!' for '/'.
std::vector<std::string> disks();
// Where a process is in the hierarchy of `controller` ("" is v2), by its /proc/PID/cgroup.
std::string cgroup_in(const std::string& table, std::string_view controller);
CgroupHost probe_cgroups();
// `known`: what probe_cgroups() said a moment ago, for those who have asked.
HostFeatures probe_host(const CgroupHost* known = nullptr);

inline constexpr const char* kOwnUidVariable = "PCTX_SANDBOX_OWN_UID";
inline constexpr const char* kOwnLeaf = "supervisor";
// AppArmor: of a guest that is started by exec, and of a Zygote with the Workers that it forks;
// of root's Podman containers. One file holds all.
inline constexpr const char* kGuestProfile = "pctx-sandbox-guest";
inline constexpr const char* kContainerProfile = "pctx-sandbox-container";
inline constexpr const char* kZygoteProfile = "pctx-sandbox-zygote";
inline constexpr const char* kLaunchProfile = "pctx-sandbox-launch";

struct HostAccount {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
};
// As /etc/passwd has it. By hand, since getpwuid of a static glibc loads the host's NSS modules.
std::optional<HostAccount> find_account(uid_t uid);
// /etc/subuid or /etc/subgid: "name-or-uid:start:count"; the first line that is this account's.
std::optional<IdRange> subordinate_range(const char* file, const HostAccount& account);
// The start of 65536 ids that /etc/subuid and /etc/subgid give nobody.
std::uint32_t free_subordinate_id();

}  // namespace pctx
