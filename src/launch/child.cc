// The only code that runs between clone and exec, first half: pid 1 of the new box forks the guest's process, builds
// the root and becomes init. No allocation, string, lock, log or exception here: a threaded parent may have left any
// lock taken.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "launch/child_root.h"
#include "sys/elsewhere.h"
#include "sys/kernel_abi.h"

namespace pctx {

void fail(const ChildPlan& plan, Step step, std::size_t index) noexcept {
  const StatusFrame frame{Message::failure, step, 0, static_cast<std::uint16_t>(index), errno};
  (void)send_frame(plan.status, frame);
  ::_exit(127);
}

// Waits for one message of the parent.
std::size_t receive(const ChildPlan& plan, int channel, Message expected, int* fds) noexcept {
  StatusFrame frame;
  std::size_t count = 0;
  const std::ptrdiff_t got = receive_frame(channel, frame, fds, count, 0);
  if (got < 0 && errno == EMFILE) fail(plan, Step::handshake, 3);
  // The parent is gone or gave up: nobody is left to tell.
  if (got != sizeof frame || frame.kind != expected) ::_exit(127);
  return count;
}

namespace {

// init must not stay in the host's: /proc/1/net would show the guest the host's connections.
// By descriptor: the guest's process has given up too much by now for us to look into it.
void join_namespaces(const ChildPlan& plan, int sync) noexcept {
  int fds[kMaxFrameFds];
  const std::size_t count = receive(plan, sync, Message::namespaces, fds);
  for (std::size_t i = 0; i < count; ++i)
    if (::setns(fds[i], 0) != 0) fail(plan, Step::namespaces, 1);
}

}  // namespace

void send_probes(const ChildPlan& plan, int root, int proc) noexcept {
  const int fds[3] = {proc, ::openat(proc, "locks", O_RDONLY | O_CLOEXEC),
                      ::openat(root, "tmp", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  if (!send_frame(plan.status, {Message::probes, Step::handshake, 0, 0, 0}, fds, 3)) fail(plan, Step::handshake, 1);
  ::close(fds[1]);
  ::close(fds[2]);
}

void become_init(const ChildPlan& plan, int init, int sync) noexcept {
  // init needs the two sockets, at fixed numbers, and nothing else.
  const int status = ::fcntl(plan.status, F_DUPFD, 16);
  const int ready = ::fcntl(sync, F_DUPFD, 16);
  const int program = ::fcntl(init, F_DUPFD_CLOEXEC, 16);
  if (status < 0 || ready < 0 || program < 0) fail(plan, Step::init, 2);
  if (::dup2(status, kInitStatusFd) < 0 || ::dup2(ready, kInitReadyFd) < 0 || ::dup2(program, 5) < 0 ||
      ::fcntl(5, F_SETFD, FD_CLOEXEC) != 0 || abi::close_range(6, ~0U, 0) != 0 || abi::close_range(0, 2, 0) != 0)
    fail(plan, Step::init, 3);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail(plan, Step::no_new_privs);
  static constexpr const char* kArgv[] = {"init", nullptr};
  static constexpr const char* kEnvp[] = {nullptr};
  abi::execveat(5, "", kArgv, kEnvp, AT_EMPTY_PATH);
  ChildPlan moved = plan;
  moved.status = kInitStatusFd;
  fail(moved, Step::init, 4);
}

void await_plan(const ChildPlan& plan) noexcept {
  for (;;) {
    StatusFrame frame;
    int fds[kMaxFrameFds];
    std::size_t count = 0;
    const std::ptrdiff_t got = receive_frame(plan.status, frame, fds, count, 0);
    if (got < 0 && errno == EMFILE) fail(plan, Step::handshake, 4);
    if (got != sizeof frame) ::_exit(127);
    if (frame.kind == Message::planned) return;
    if (frame.kind != Message::tree || count != 1 || frame.index >= plan.op_count) ::_exit(127);
    plan.ops[frame.index].tree = fds[0];
  }
}

void await_go(const ChildPlan& plan) noexcept {
  int none[kMaxFrameFds];
  (void)receive(plan, plan.status, Message::go, none);
}

namespace {

bool restore_capabilities() noexcept {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2];
  if (::syscall(SYS_capget, &header, sets) != 0) return false;
  for (auto& set : sets) set.effective = set.permitted;
  return ::syscall(SYS_capset, &header, sets) == 0;
}

}  // namespace

void become_guest_ids(const ChildPlan& plan) noexcept {
  if (!plan.set_ids) return;
  // Raw calls: glibc's wrappers signal all threads of a process that we are only a copy of.
  if (plan.drop_groups && ::syscall(SYS_setgroups, 0, nullptr) != 0) fail(plan, Step::ids, 0);
  if (::syscall(SYS_setresgid, plan.uid, plan.uid, plan.uid) != 0) fail(plan, Step::ids, 1);
  // Our own capabilities survive: they are lost only when the uid changes from the namespace's root to another.
  if (plan.uid != 0 && ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) fail(plan, Step::ids, 2);
  if (::syscall(SYS_setresuid, plan.uid, plan.uid, plan.uid) != 0) fail(plan, Step::ids, 3);
  // Without a namespace of our own it does: then they are kept, but no longer in effect.
  if (plan.shares_user && !restore_capabilities()) fail(plan, Step::ids, 5);
}

int open_profile(const ChildPlan& plan, int proc, bool at_exec) noexcept {
  int fd = ::openat(proc, at_exec ? "self/attr/apparmor/exec" : "self/attr/apparmor/current", O_WRONLY | O_CLOEXEC);
  if (fd < 0) fd = ::openat(proc, at_exec ? "self/attr/exec" : "self/attr/current", O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail(plan, Step::apparmor);
  return fd;
}

void write_profile(const ChildPlan& plan, int fd, const char* text) noexcept {
  const std::size_t size = std::strlen(text);
  if (::write(fd, text, size) != static_cast<ssize_t>(size)) fail(plan, Step::apparmor, 1);
  ::close(fd);
}

void enter_launch_profile(const ChildPlan& plan, int proc) noexcept {
  if (plan.launch_profile != nullptr) write_profile(plan, open_profile(plan, proc, false), plan.launch_profile);
}

void join_cgroups(const ChildPlan& plan, int channel) noexcept {
  int fds[kMaxFrameFds];
  const std::size_t count = receive(plan, channel, Message::cgroups, fds);
  for (std::size_t i = 0; i < count; ++i) {
    // "0" is the writer itself: 0.05 ms here, against 8 to 12 ms when another process writes our pid.
    if (::write(fds[i], "0", 1) != 1) fail(plan, Step::cgroup, i);
    ::close(fds[i]);
  }
}

namespace {

// The guest's process has made most of its namespaces on this CPU while we waited for the plan. From here on there is
// work for two, and the supervisor is done soon: the guest's process goes on elsewhere. It goes back to all its CPUs
// before it becomes the guest.
void part(const ChildPlan& plan, pid_t guest) noexcept {
  (void)::syscall(SYS_sched_setaffinity, 0, sizeof plan.allowed, &plan.allowed);
  sys::send_elsewhere(guest, plan.allowed);
}

}  // namespace

void run_child(ChildPlan& plan) noexcept {
  ::umask(022);
  int sync[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) != 0) fail(plan, Step::fork);
  // By descriptor: the guest's process may look for its own entries after we have left the host's root.
  const int host_proc = ::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (host_proc < 0) fail(plan, Step::fork, 2);
  const long guest = ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (guest < 0) fail(plan, Step::fork, 1);
  if (guest == 0) {
    ::close(sync[0]);
    run_guest(plan, sync[1], host_proc);
  }
  ::close(sync[1]);
  ::close(plan.guest_channel);
  int proc = -1;
  await_plan(plan);
  if (plan.spread) part(plan, static_cast<pid_t>(guest));
  enter_launch_profile(plan, host_proc);
  ::close(host_proc);
  clone_binds(plan);
  await_go(plan);
  become_guest_ids(plan);
  const int root = enter_root(plan);
  for (std::size_t i = 0; i < plan.op_count; ++i) apply(plan, plan.ops[i], root, proc, i);
  const int init = place_init(plan, root);
  if (::send(sync[0], "r", 1, MSG_NOSIGNAL) != 1) ::_exit(127);
  if (plan.send_probes) send_probes(plan, root, proc);
  detach_old_root(plan, root);
  seal_root(plan, root);
  apply_masks(plan, root);
  if (plan.late_namespaces != 0) join_namespaces(plan, sync[0]);
  become_init(plan, init, sync[0]);
}

}  // namespace pctx
