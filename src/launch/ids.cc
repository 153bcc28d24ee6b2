// Id maps and id-mapped mounts: who the guest is on the host.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>

#include <fmt/format.h>

#include "launch/spawn.h"
#include "sys/blocked_signals.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"
#include "sys/process.h"

namespace pctx {
namespace {

Result<void> run_helper(const char* program, pid_t pid, std::uint32_t inside, std::uint32_t outside) {
  constexpr std::size_t kMostSaid = 4096;
  constexpr Millis kPatience{10'000};
  const auto ended = PCTX_TRY(sys::run_program(
      {program, std::to_string(pid), std::to_string(inside), std::to_string(outside), "1"}, -1, kMostSaid, kPatience));
  if (ended.status == 0) return {};
  const std::string_view said = sys::split(ended.err, '\n').front();
  return unavailable(
      fmt::format("{} refused to map id {} of this user{}{}", program, outside, said.empty() ? "" : ": ", said),
      "check the ranges in /etc/subuid and /etc/subgid with 'pctx-sandbox doctor'; if they are right, the caller may "
      "lack the rights that set-id programs need");
}

// Shares our memory, and is killed before it is gone.
int hold_namespace(void*) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() == 1) ::_exit(0);  // not longer than we live
  for (;;) ::pause();
}

}  // namespace

Result<void> write_id_maps(pid_t pid, const IdMap& ids) {
  if (ids.by_helper) {
    PCTX_TRY(run_helper("/usr/bin/newuidmap", pid, ids.inside, ids.host_uid));
    return run_helper("/usr/bin/newgidmap", pid, ids.inside, ids.host_gid);
  }
  const Fd proc = PCTX_TRY(sys::open_at(AT_FDCWD, fmt::format("/proc/{}", pid), O_PATH | O_DIRECTORY));
  auto mapped = sys::write_at(proc.get(), "uid_map", fmt::format("{} {} 1", ids.inside, ids.host_uid));
  if (!mapped && mapped.error().code == EPERM && ids.host_uid == 0)
    return unavailable("root here has no CAP_SETFCAP, without which it may not be in a user namespace",
                       "start us as another user than root, or add it: 'pctx-sandbox doctor' says how");
  PCTX_TRY(std::move(mapped));
  // An unprivileged gid map is only taken once the group list can no longer change.
  if (!ids.drop_groups) PCTX_TRY(sys::write_at(proc.get(), "setgroups", "deny"));
  return sys::write_at(proc.get(), "gid_map", fmt::format("{} {} 1", ids.inside, ids.host_gid));
}

IdMapping::~IdMapping() {
  if (holder_ <= 0) return;
  (void)abi::pidfd_send_signal(pidfd_.get(), SIGKILL);
  while (::waitpid(holder_, nullptr, __WALL) < 0 && errno == EINTR) {
  }
}

Result<IdMapping> IdMapping::make(std::uint32_t from_uid, std::uint32_t from_gid, std::uint32_t uid,
                                  std::uint32_t gid) {
  IdMapping mapping;
  mapping.stack_ = std::make_unique<char[]>(kStack);
  int pidfd = -1;
  const sys::BlockedSignals blocked;
  mapping.holder_ = ::clone(hold_namespace, mapping.stack_.get() + kStack,
                            CLONE_VM | CLONE_NEWUSER | CLONE_PIDFD | SIGCHLD, nullptr, &pidfd);
  if (mapping.holder_ < 0) return os_error("cannot make a user namespace");
  mapping.pidfd_ = Fd{pidfd};
  const Fd proc = PCTX_TRY(sys::open_at(AT_FDCWD, fmt::format("/proc/{}", mapping.holder_), O_PATH | O_DIRECTORY));
  PCTX_TRY(sys::write_at(proc.get(), "uid_map", fmt::format("{} {} 1", from_uid, uid)));
  PCTX_TRY(sys::write_at(proc.get(), "gid_map", fmt::format("{} {} 1", from_gid, gid)));
  mapping.names_ = PCTX_TRY(sys::open_at(proc.get(), "ns/user", O_RDONLY));
  return mapping;
}

Result<Fd> idmapped_tree(const LentPath& source, int mapping) {
  Fd tree{
      abi::open_tree(AT_FDCWD, source.path.c_str(), abi::kOpenTreeClone | abi::kOpenTreeCloexec | abi::kAtRecursive)};
  if (!tree) return os_error(fmt::format("cannot lend {}", source.path));
  // It was cloned in the host's own mount namespace, as a peer of what it was cloned from.
  const abi::MountAttr attr{abi::kMountIdmap, 0, MS_PRIVATE, static_cast<std::uint64_t>(mapping)};
  if (abi::mount_setattr(tree.get(), abi::kAtRecursive, attr) != 0)
    return unavailable(
        fmt::format("{} belongs to uid {} and cannot be lent read-write: its file system or this kernel has no "
                    "id-mapped mounts",
                    source.path, source.uid),
        "use a folder on ext4, xfs or btrfs (kernel 5.12 or later), or make it writable for everyone");
  return tree;
}

}  // namespace pctx
