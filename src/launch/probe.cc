#include "launch/probe.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <string>

#include <fmt/format.h>

#include "sys/kernel_abi.h"

namespace pctx {
namespace {

// Runs `check` in a child with new namespaces; its value is the errno, 0 for success.
template <class Check>
ProbedLayer in_child(std::uint64_t flags, Check check) {
  abi::CloneArgs args{};
  args.flags = flags;
  args.exit_signal = SIGCHLD;
  const long pid = abi::clone3(args);
  if (pid < 0) return {false, errno};
  if (pid == 0) ::_exit(check());
  int status = 0;
  while (::waitpid(static_cast<pid_t>(pid), &status, __WALL) < 0 && errno == EINTR) {
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
  return {code == 0, code};
}

// AppArmor of Ubuntu 24.04 lets everyone make a user namespace, and gives its owner no rights in it. The kernel asks
// for the right first: what it says of uts namespaces after that is about them, and a box can be without.
int has_power() { return ::unshare(CLONE_NEWUTS) == 0 || errno == ENOSPC || errno == EINVAL ? 0 : errno; }

int maps(uid_t uid) {
  const int map = ::open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
  const std::string line = fmt::format("0 {} 1", uid);
  return map >= 0 && ::write(map, line.data(), line.size()) == static_cast<ssize_t>(line.size()) ? 0 : errno;
}

// Podman's default filter allows the namespace and refuses the name.
int names_a_host() { return ::sethostname("sandbox", 7) != 0 ? errno : 0; }

int mounts_a_tmpfs() {
  const int fs = abi::fsopen("tmpfs");
  if (fs < 0 || abi::fsconfig(fs, abi::kFsconfigCreate, nullptr, nullptr) != 0) return errno;
  return abi::fsmount(fs, 0) < 0 ? errno : 0;
}

int mounts_proc() {
  const int fs = abi::fsopen("proc");
  if (fs < 0 || abi::fsconfig(fs, abi::kFsconfigCreate, nullptr, nullptr) != 0) return errno;
  return abi::fsmount(fs, 0) < 0 ? errno : 0;
}

int installs_a_listener() {
  sock_filter allow{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
  const sock_fprog program{1, &allow};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  return abi::seccomp(SECCOMP_SET_MODE_FILTER, abi::kSeccompNewListener, &program) < 0 ? errno : 0;
}

}  // namespace

ProbedLayer probe_layer(Layer layer, const HostFeatures& host) {
  const auto nothing = [] { return 0; };
  // As an ordinary user only the owner of a new user namespace may make the others.
  const std::uint64_t base = CLONE_NEWUSER;
  switch (layer) {
    case Layer::user:
      return in_child(CLONE_NEWUSER, has_power);
    case Layer::pid:
      return in_child(base | CLONE_NEWPID, nothing);
    case Layer::mount:
      return in_child(base | CLONE_NEWNS, mounts_a_tmpfs);
    case Layer::network:
      return in_child(base | CLONE_NEWNET, nothing);
    case Layer::ipc:
      return in_child(base | CLONE_NEWIPC, nothing);
    case Layer::uts:
      return in_child(base | CLONE_NEWUTS, names_a_host);
    case Layer::cgroup_namespace:
      return in_child(base | CLONE_NEWCGROUP, nothing);
    case Layer::proc:
      return in_child(base | CLONE_NEWNS | CLONE_NEWPID, mounts_proc);
    case Layer::seccomp: {
      unsigned action = SECCOMP_RET_USER_NOTIF;
      if (abi::seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0) return {true, 0};
      return {false, errno};
    }
    case Layer::no_new_privs:
      return {::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) >= 0, errno};
    case Layer::capabilities:
      return {true, 0};
    case Layer::landlock:
      return {host.landlock_abi > 0, ENOSYS};
    case Layer::subordinate_ids:
      return {host.privileged || (host.subuid && host.subgid && host.id_helpers && host.no_set_id.empty()), ENOENT};
    case Layer::cgroups:
      return {host.cgroup.version != CgroupVersion::none || host.cgroup.ask_systemd, EACCES};
    case Layer::apparmor:
      return {host.apparmor_profile, ENOENT};
  }
  return {};
}

bool maps_own_id(const HostFeatures& host) {
  return host.privileged || in_child(CLONE_NEWUSER, [&] { return maps(host.uid); }).works;
}

bool listener_is_taken() {
  // Without a filter there is no listener: the only question that an ordinary host is asked. The answer is the mode.
  if (::prctl(PR_GET_SECCOMP, 0, 0, 0, 0) <= 0) return false;
  // Of the filters of one process a single one may have a listener; which of ours do, the kernel does not show.
  return in_child(0, installs_a_listener).code == EBUSY;
}

LayerSet probe_missing(const LayerSet& asked, const HostFeatures& host) {
  LayerSet missing;
  for (const LayerInfo& entry : kLayers)
    if (asked.test(index(entry.layer)) && !probe_layer(entry.layer, host).works) missing.set(index(entry.layer));
  return missing;
}

}  // namespace pctx
