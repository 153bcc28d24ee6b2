// The only code that runs between clone and exec, second half: the guest's process gives up everything and becomes the
// command. The order is the point; each step says what it must come after.
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/netlink.h>
#include <linux/securebits.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "launch/child_plan.h"
#include "launch/child_root.h"
#include "sys/kernel_abi.h"

namespace pctx {

void loopback_up(const ChildPlan& plan) noexcept {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request;
  std::memset(&request, 0, sizeof request);
  std::memcpy(request.ifr_name, "lo", 3);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (socket < 0 || ::ioctl(socket, SIOCSIFFLAGS, &request) != 0) fail(plan, Step::loopback);
  ::close(socket);
}

void send_socket_probe(const ChildPlan& plan) noexcept {
  const int diag = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  // A kernel without it keeps the supervisor from counting socket buffers, not the box from running.
  if (diag >= 0 && !send_frame(plan.status, {Message::sockets, Step::handshake, 0, 0, 0}, &diag, 1))
    fail(plan, Step::handshake, 2);
  ::close(diag);
}

void do_without(const ChildPlan& plan, Step step, bool optional) noexcept {
  const int code = errno;
  if (!optional || !send_frame(plan.status, {Message::lacking, step, 0, 0, code})) {
    errno = code;
    fail(plan, step);
  }
}

// Podman's default filter allows the namespace and refuses the name.
void name_host(const ChildPlan& plan) noexcept {
  if (plan.new_uts && ::sethostname(plan.hostname, plan.hostname_size) != 0)
    do_without(plan, Step::hostname, plan.uts_optional);
}

namespace {

constexpr int kStatus = 3;
constexpr int kSync = 4;
constexpr int kProfile = 5;  // AppArmor's, where there is one to enter without an exec

// A caller that goes before others, by its nice value or as a real-time process, does not pass that on.
void take_no_precedence(const ChildPlan& plan) noexcept {
  // The kernel answers 20 - nice, to keep errors apart.
  if (::syscall(SYS_getpriority, 0, 0) > 20 && ::syscall(SYS_setpriority, 0, 0, 0) != 0)
    fail(plan, Step::descriptors, 8);
  const long policy = ::syscall(SYS_sched_getscheduler, 0);
  const int priority = 0;
  if ((policy == 1 /* FIFO */ || policy == 2 /* RR */) && ::syscall(SYS_sched_setscheduler, 0, 0, &priority) != 0)
    fail(plan, Step::descriptors, 9);
}

// A network namespace takes the kernel longer than all mounts together: it is made while the parent still plans.
// The result is 0, or why there is no uts namespace: the only one of these that a box can be without.
int make_namespaces(const ChildPlan& plan) noexcept {
  int without_uts = 0;
  if (plan.late_namespaces != 0 && ::unshare(plan.late_namespaces) != 0) {
    without_uts = errno;
    const bool tried = (plan.late_namespaces & CLONE_NEWUTS) != 0;
    if (!tried || ::unshare(plan.late_namespaces & ~CLONE_NEWUTS) != 0) fail(plan, Step::namespaces);
  }
  int none[kMaxFrameFds];
  if (plan.guest_channel >= 0) (void)receive(plan, plan.guest_channel, Message::planned, none);
  return without_uts;
}

void furnish_namespaces(const ChildPlan& plan, int host_proc) noexcept {
  name_host(plan);
  if (plan.late_namespaces & CLONE_NEWNET) apply_network_settings(plan, host_proc);
  if (plan.network != nullptr)
    make_network(plan);
  else if (plan.new_network)
    loopback_up(plan);
  if (plan.send_probes) send_socket_probe(plan);
  take_no_precedence(plan);  // v1: a real-time process may not enter
  // After joining, so that the box's own cgroup is the root of what it sees.
  if (plan.joins_cgroups) join_cgroups(plan, plan.guest_channel);
  if (plan.cgroup_namespace && ::unshare(CLONE_NEWCGROUP) != 0)
    do_without(plan, Step::cgroup_namespace, plan.cgroup_namespace_optional);
}

// init follows us into them.
void hand_over_namespaces(const ChildPlan& plan, int sync, int host_proc) noexcept {
  struct Kind {
    int flag;
    const char* path;
  };
  static constexpr Kind kKinds[] = {
      {CLONE_NEWNET, "self/ns/net"}, {CLONE_NEWIPC, "self/ns/ipc"}, {CLONE_NEWUTS, "self/ns/uts"}};
  int fds[3];
  std::size_t count = 0;
  for (const Kind& kind : kKinds)
    if ((plan.late_namespaces & kind.flag) != 0) {
      fds[count] = ::openat(host_proc, kind.path, O_RDONLY | O_CLOEXEC);
      if (fds[count++] < 0) fail(plan, Step::namespaces, 2);
    }
  if (!send_frame(sync, {Message::namespaces, Step::namespaces, 0, 0, 0}, fds, count)) fail(plan, Step::handshake, 5);
  while (count > 0) ::close(fds[--count]);
}

// That of the launch from here on, and the guest's at our next exec or when we have no use for rights any more; then
// the result is where to write it. Through the host's /proc: that of the box is read-only.
int choose_profiles(const ChildPlan& plan, int host_proc) noexcept {
  enter_launch_profile(plan, host_proc);
  if (plan.guest_profile == nullptr) return -1;
  const int fd = open_profile(plan, host_proc, plan.profile_at_exec);
  if (!plan.profile_at_exec) return fd;
  write_profile(plan, fd, plan.guest_profile);
  return -1;
}

// A pty of the box's own devpts: the caller's terminal is never the guest's (TIOCSTI), and ttyname() works inside.
void open_terminal(ChildPlan& plan) noexcept {
  const int master = ::open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
  const int unlocked = 0;
  if (master < 0 || ::ioctl(master, TIOCSPTLCK, &unlocked) != 0) fail(plan, Step::terminal);
  const int slave = ::ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (slave < 0 || ::ioctl(slave, TIOCSWINSZ, &plan.window) != 0) fail(plan, Step::terminal, 1);
  if (!send_frame(plan.status, {Message::terminal, Step::terminal, 0, 0, 0}, &master, 1)) fail(plan, Step::terminal, 2);
  ::close(master);
  if (::ioctl(slave, TIOCSCTTY, 0) != 0) fail(plan, Step::terminal, 3);
  for (int& fd : plan.std_fds) fd = slave;
}

// Everything that is not on this list is closed: a descriptor that the caller left open is a way out (CVE-2024-21626).
void arrange_descriptors(ChildPlan& plan, int sync, int profile) noexcept {
  constexpr int kHigh = kProfile + 1;  // above what they become, and below any limit of open files
  const int wanted[] = {plan.std_fds[0], plan.std_fds[1], plan.std_fds[2], plan.status, sync, profile};
  const int count = profile < 0 ? kProfile : kProfile + 1;
  int high[kProfile + 1];
  for (int i = 0; i < count; ++i) {
    high[i] = ::fcntl(wanted[i], F_DUPFD, kHigh);
    if (high[i] < 0) fail(plan, Step::descriptors, static_cast<std::size_t>(i));
  }
  for (int i = 0; i < count; ++i)
    if (::dup3(high[i], i, i < 3 ? 0 : O_CLOEXEC) < 0) {
      plan.status = high[3];
      fail(plan, Step::descriptors, static_cast<std::size_t>(i));
    }
  plan.status = kStatus;
  if (abi::close_range(static_cast<unsigned>(count), ~0U, 0) != 0) fail(plan, Step::descriptors, 6);
}

// We still stand where the caller stood, in a folder of the host's: leave it before a path can lead back to it
// (/proc/self/cwd), and look where we are (CVE-2024-21626). The kernel marks a place outside the root.
void enter_workdir(const ChildPlan& plan) noexcept {
  char where[4096];
  if (::chdir("/") != 0 || ::chdir(plan.workdir) != 0) fail(plan, Step::workdir);
  if (::syscall(SYS_getcwd, where, sizeof where) < 0) fail(plan, Step::workdir, 1);
  if (where[0] != '/') {
    errno = EXDEV;
    fail(plan, Step::workdir, 2);
  }
}

// What the caller ignores must not be what the guest ignores.
void reset_inheritance() noexcept {
  struct {  // as the kernel has it
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    unsigned long mask;
  } const standard{};
  for (int signal = 1; signal <= 64; ++signal)
    if (signal != SIGKILL && signal != SIGSTOP)
      (void)::syscall(SYS_rt_sigaction, signal, &standard, nullptr, sizeof standard.mask);
}

// What no exec gives back. We keep what we have, and still need.
void drop_bounding_set(const ChildPlan& plan) noexcept {
  for (int cap = 0; cap < 64; ++cap)
    if (::prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0) {
      if (errno == EINVAL) break;  // past the last one that this kernel knows
      fail(plan, Step::capabilities, static_cast<std::size_t>(cap));
    }
}

void drop_capabilities(const ChildPlan& plan) noexcept {
  constexpr unsigned long kBits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
                                  SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
                                  SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
  if (::prctl(PR_SET_SECUREBITS, kBits, 0, 0, 0) != 0) fail(plan, Step::capabilities, 64);
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) fail(plan, Step::capabilities, 65);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2];
  std::memset(none, 0, sizeof none);
  if (::syscall(SYS_capset, &header, none) != 0) fail(plan, Step::capabilities, 66);
}

// Descriptors on their way through sockets count per user, and a new one passes if these are fewer than the sender may
// have open. Other guests may share our user: with the limit of a guest, one of them could keep the listener from
// passing, and so every box from starting.
void apply_limits(const ChildPlan& plan, bool after_filter) noexcept {
  for (std::size_t i = 0; i < plan.rlimit_count; ++i) {
    const bool late = plan.files_last && plan.rlimits[i].resource == RLIMIT_NOFILE;
    rlimit limit{plan.rlimits[i].value, plan.rlimits[i].value};
    if (late && !after_filter) {
      if (::syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) != 0) fail(plan, Step::rlimit, i);
      limit.rlim_cur = limit.rlim_max;
    } else if (late != after_filter) {
      continue;
    }
    if (::syscall(SYS_prlimit64, 0, plan.rlimits[i].resource, &limit, nullptr) != 0) fail(plan, Step::rlimit, i);
  }
}

void apply_landlock(const ChildPlan& plan) noexcept {
  if (plan.landlock_handled == 0) return;
  const abi::LandlockRuleset attr{plan.landlock_handled, 0, plan.landlock_scoped};
  const int ruleset = abi::landlock_create_ruleset(&attr, plan.landlock_size, 0);
  if (ruleset < 0) fail(plan, Step::landlock);
  for (std::size_t i = 0; i < plan.rule_count; ++i) {
    const int fd = ::open(plan.rules[i].path, O_PATH | O_CLOEXEC);
    const abi::LandlockPathRule rule{plan.rules[i].access, fd};
    if (fd < 0 || abi::landlock_add_path(ruleset, rule) != 0) fail(plan, Step::landlock, i + 1);
    ::close(fd);
  }
  if (abi::landlock_restrict_self(ruleset) != 0) fail(plan, Step::landlock, 65535);
  ::close(ruleset);
}

void apply_filter(const ChildPlan& plan) noexcept {
  if (plan.filter.len == 0) return;
  const int listener =
      abi::seccomp(SECCOMP_SET_MODE_FILTER, plan.listener ? abi::kSeccompNewListener : 0, &plan.filter);
  if (listener < 0) fail(plan, Step::seccomp);
  if (!plan.listener) return;
  // From here on the filter holds for us too; sending and exec are on its list.
  if (!send_frame(plan.status, {Message::listener, Step::seccomp, 0, 0, 0}, &listener, 1)) fail(plan, Step::seccomp, 1);
  ::close(listener);
}

int why_not_allowed(const char* path) noexcept {
  struct stat status;
  return ::stat(path, &status) == 0 && S_ISDIR(status.st_mode) ? EISDIR : EACCES;
}

}  // namespace

void run_guest(const ChildPlan& given, int sync, int host_proc) noexcept {
  const int without_uts = make_namespaces(given);
  ChildPlan plan = given;  // descriptors move, and pid 1 reads the same memory
  if (without_uts != 0) {
    errno = without_uts;
    do_without(plan, Step::uts, plan.uts_optional);
    plan.new_uts = false;
    plan.late_namespaces &= ~CLONE_NEWUTS;
  }
  const int profile = choose_profiles(plan, host_proc);
  furnish_namespaces(plan, host_proc);
  if (given.late_namespaces != 0) hand_over_namespaces(plan, sync, host_proc);
  // A hundred calls that can be made while pid 1 still builds the root.
  reset_inheritance();
  drop_bounding_set(plan);
  char byte;
  if (::read(sync, &byte, 1) != 1) ::_exit(127);  // pid 1 has said why
  become_guest_ids(plan);
  if (::setsid() < 0) fail(plan, Step::descriptors, 7);
  if (plan.terminal) open_terminal(plan);
  arrange_descriptors(plan, sync, profile);
  enter_workdir(plan);
  if ((plan.pin || plan.spread) && ::syscall(SYS_sched_setaffinity, 0, sizeof plan.cpus, &plan.cpus) != 0)
    fail(plan, Step::affinity);
  apply_limits(plan, false);
  if (plan.small_pages && ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) fail(plan, Step::rlimit, plan.rlimit_count);
  // Session keyrings cross every namespace: without a new one the guest holds the caller's keys.
  if (plan.keyring && abi::join_session_keyring() < 0 && errno != ENOSYS) fail(plan, Step::keyring);
  drop_capabilities(plan);
  // The guest's profile allows no right that we may have had a use for, and no_new_privs only what the launch's allows.
  if (profile >= 0) write_profile(plan, kProfile, plan.guest_profile);
  // After the capabilities, before Landlock and seccomp, which an unprivileged process may only use with it.
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail(plan, Step::no_new_privs);
  apply_landlock(plan);
  // Last: what comes after is bound by it, and is on its list.
  apply_filter(plan);
  if (plan.files_last) apply_limits(plan, true);
  // Until pid 1 has detached the old root, become init and closed itself to /proc, the guest must not run. End of file
  // is the sign.
  while (::read(kSync, &byte, 1) < 0 && errno == EINTR) {
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  int error = ENOENT;
  for (const char* const* path = plan.candidates; *path != nullptr; ++path) {
    ::execve(*path, const_cast<char* const*>(plan.argv), const_cast<char* const*>(plan.envp));
    if (errno == EACCES) errno = why_not_allowed(*path);
    // As a shell: "permission denied" is remembered, "not found" is passed over.
    if (errno != ENOENT && errno != ENOTDIR) error = errno;
  }
  errno = error;
  fail(plan, Step::exec);
}

}  // namespace pctx
