// The container's cgroup, handed to the Broker in it from outside. Runtimes give it to the container's root, who nobody
// in there is. Podman's own commands take a tenth of a second each: none is needed here.
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "backend/podman/podman.h"
#include "base/fd.h"
#include "env/tree.h"
#include "sys/delegation.h"
#include "sys/files.h"
#include "sys/host.h"

namespace pctx::backend::podman {
namespace {

// What dividing a cgroup takes. All else in it is about the container itself.
constexpr std::array<std::string_view, 3> kDivide{"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"};

// Rootless, the limits' files are the caller's, who the container's user is. That a cgroup namespace keeps its
// inhabitants from its own root's limits helps until they make another namespace below. So these go first, to the
// container's root, and whatever fails leaves the rest undone.
Result<void> change_owners(int folder, uid_t uid, gid_t gid) {
  const std::vector<std::string> names = env::names_below(folder, ".");
  if (names.empty()) return unavailable("the container's cgroup cannot be read", "see 'pctx-sandbox doctor'");
  for (const std::string& name : names) {
    struct stat status {};
    if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return os_error(name);
    if (!S_ISREG(status.st_mode) || status.st_uid != uid ||
        std::find(kDivide.begin(), kDivide.end(), name) != kDivide.end())
      continue;
    if (::fchownat(folder, name.c_str(), 0, 0, AT_SYMLINK_NOFOLLOW) != 0) return os_error(name);
  }
  for (const std::string_view name : kDivide)
    if (::fchownat(folder, name.data(), uid, gid, AT_SYMLINK_NOFOLLOW) != 0) return os_error(std::string{name});
  return ::fchown(folder, uid, gid) == 0 ? Result<void>{} : os_error("the folder itself");
}

// In the container's user namespace its ids are ours to change: it is this user's.
Result<void> change_owners_inside(pid_t first, int folder, uid_t uid, gid_t gid) {
  const Fd ids{::open(fmt::format("/proc/{}/ns/user", first).c_str(), O_RDONLY | O_CLOEXEC)};
  if (!ids) return os_error("cannot open the container's user namespace");
  const pid_t child = ::fork();
  if (child < 0) return os_error("cannot start a process");
  if (child == 0) ::_exit(::setns(ids.get(), CLONE_NEWUSER) == 0 && change_owners(folder, uid, gid) ? 0 : 1);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return unavailable("the container's cgroup cannot be given to its user", "see 'pctx-sandbox doctor'");
}

}  // namespace

std::string container_cgroup(const std::string& table) {
  std::string path = cgroup_in(table, "");
  // Where a runtime may not make one, the container stays in its caller's.
  return path.find("/libpod-") != std::string::npos ? path : "";
}

Result<void> hand_cgroup_over(pid_t first, uid_t uid, gid_t gid) {
  if (!has_unified_cgroups())
    return unavailable("this host has no cgroup v2", "boot with systemd.unified_cgroup_hierarchy=1");
  const std::string path = container_cgroup(PCTX_TRY(sys::read_file(fmt::format("/proc/{}/cgroup", first), 4096)));
  if (path.empty()) return unavailable("the container has no cgroup of its own", "see 'pctx-sandbox doctor'");
  const Fd folder = PCTX_TRY(sys::open_at(AT_FDCWD, "/sys/fs/cgroup" + path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (sys::try_read_file("cgroup.procs", 4096, folder.get()) != fmt::format("{}\n", first))
    return unavailable("others are in the container's cgroup", "see 'pctx-sandbox doctor'");
  return ::geteuid() == 0 ? change_owners(folder.get(), uid, gid) : change_owners_inside(first, folder.get(), uid, gid);
}

}  // namespace pctx::backend::podman
