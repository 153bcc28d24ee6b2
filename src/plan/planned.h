// For tests of plans: a host of root's with cgroup v2, one of a user's without cgroups, and what a plan holds.
#pragma once

#include <string_view>

#include "plan/plan.h"

namespace pctx {

inline HostFeatures root_host() {
  HostFeatures host;
  host.privileged = true;
  host.kernel_major = 6;
  host.kernel_minor = 18;
  host.landlock_abi = 7;
  host.first_free_id = 0x70000000;
  host.cgroup = {
      .version = CgroupVersion::v2, .unified = "/sys/fs/cgroup", .cpu_controller = true, .io_controller = true};
  host.system = {{"/usr", PathKind::directory, ""},
                 {"/bin", PathKind::link, "usr/bin"},
                 {"/lib64", PathKind::link, "usr/lib64"},
                 {"/etc/ld.so.cache", PathKind::file, ""},
                 {"/etc/localtime", PathKind::link, "/usr/share/zoneinfo/Etc/UTC"}};
  host.attach_point = "/tmp";
  host.cpus = 4;
  return host;
}

inline HostFeatures user_host() {
  HostFeatures host = root_host();
  host.uid = host.gid = 1000;
  host.privileged = false;
  host.cgroup = {.version = CgroupVersion::none, .why_none = "no cgroup is delegated to this user"};
  return host;
}

inline const RootOp* op_of(const Plan& plan, RootOpKind kind, std::string_view target) {
  for (const RootOp& op : plan.root)
    if (op.kind == kind && op.target == target) return &op;
  return nullptr;
}

}  // namespace pctx
