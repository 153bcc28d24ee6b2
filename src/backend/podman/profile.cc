// The container's own system call filter. Two walls, two lists: guests get the Box's, which takes most of this away.
#include <array>
#include <cerrno>
#include <set>
#include <string_view>

#include "backend/podman/podman.h"
#include "base/json.h"
#include "plan/syscall_policy.h"
#include "sys/syscalls.h"

namespace pctx::backend::podman {
namespace {

// Beyond what a guest may call: what the runtime does before our program starts, and what making a box takes.
constexpr std::array kForBoxes{
    // namespaces and their ids
    "clone", "clone3", "unshare", "setns", "setuid", "setgid", "setgroups", "setresuid", "setresgid", "setreuid",
    "setregid", "sethostname", "setdomainname", "setfsuid", "setfsgid",
    // the box's root
    "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount",
    "mount_setattr", "openat2", "statfs", "fstatfs", "mknod", "mknodat",
    // its filter, rules and keyring
    "seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "keyctl", "capget", "capset",
    "prctl", "arch_prctl",
    // its processes
    "execve", "execveat", "kill", "tkill", "tgkill", "pidfd_open", "pidfd_send_signal", "waitid", "wait4", "vfork",
    "fork", "process_mrelease", "prlimit64", "setrlimit", "sched_setaffinity", "sched_setscheduler", "sched_setattr",
    "setpriority", "ioprio_set", "personality", "setsid", "setpgid", "kcmp",
    // its ends
    "socket", "socketpair", "bind", "listen", "accept", "accept4", "connect", "sendmsg", "recvmsg", "setsockopt",
    "getsockopt", "memfd_create", "signalfd4", "timerfd_create", "timerfd_settime", "epoll_create1", "epoll_ctl",
    "epoll_pwait", "inotify_init1", "inotify_add_watch", "ioctl", "fcntl", "flock", "fchown", "fchownat", "chown",
    "lchown"};

}  // namespace

std::string seccomp_profile() {
  std::set<std::string_view> allowed, absent;
  for (const PolicyEntry& entry : default_policy())
    (entry.condition == Condition::absent ? absent : allowed).insert(entry.name);
  allowed.insert(kForBoxes.begin(), kForBoxes.end());
  // Two answers, those of the Box's own filter: EPERM for what Linux has and this refuses, ENOSYS for what is newer.
  OrderedJson refused = OrderedJson::array();
  for (int number = 0; number < syscall_limit(kHostArch); ++number)
    if (const std::string_view name = syscall_name(kHostArch, number);
        !name.empty() && !allowed.contains(name) && !absent.contains(name))
      refused.push_back(name);
  const OrderedJson profile{
      {"defaultAction", "SCMP_ACT_ERRNO"},
      {"defaultErrnoRet", ENOSYS},
      {"archMap",
       OrderedJson::array({{{"architecture", kHostArch == Arch::x86_64 ? "SCMP_ARCH_X86_64" : "SCMP_ARCH_AARCH64"},
                            {"subArchitectures", OrderedJson::array()}}})},
      {"syscalls", OrderedJson::array({{{"names", allowed}, {"action", "SCMP_ACT_ALLOW"}},
                                       {{"names", refused}, {"action", "SCMP_ACT_ERRNO"}, {"errnoRet", EPERM}}})}};
  return profile.dump(1) + "\n";
}

}  // namespace pctx::backend::podman
