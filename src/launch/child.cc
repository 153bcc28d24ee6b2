// The only code that runs between clone and exec, first half: pid 1 of the new box forks the guest's process, builds
// the root and becomes init. No allocation, string, lock, log or exception here: a threaded parent may have left any
// lock taken.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "launch/child_plan.h"
#include "sys/kernel_abi.h"

namespace pctx {

bool send_frame(int socket, const StatusFrame& frame, const int* fds, std::size_t count) noexcept {
  iovec data{const_cast<StatusFrame*>(&frame), sizeof frame};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  msghdr message;
  std::memset(&message, 0, sizeof message);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (count > 0) {
    std::memset(control, 0, sizeof control);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof frame;
}

void fail(const ChildPlan& plan, Step step, std::size_t index) noexcept {
  const StatusFrame frame{Message::failure, step, 0, static_cast<std::uint16_t>(index), errno};
  (void)send_frame(plan.status, frame);
  ::_exit(127);
}

namespace {

// Waits for one message of the parent; at most 4 descriptors come with it.
int receive(int channel, Message expected, int* fds) noexcept {
  StatusFrame frame;
  iovec data{&frame, sizeof frame};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  msghdr message;
  std::memset(&message, 0, sizeof message);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(channel, &message, MSG_CMSG_CLOEXEC);
  // The parent is gone or gave up: nobody is left to tell.
  if (got != sizeof frame || frame.kind != expected) ::_exit(127);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || fds == nullptr) return 0;
  const std::size_t bytes = header->cmsg_len - CMSG_LEN(0);
  std::memcpy(fds, CMSG_DATA(header), bytes);
  return static_cast<int>(bytes / sizeof(int));
}

// Before 5.12 there is no mount_setattr, and the old remount works only on a mount that is attached.
bool remount(int root, const char* target, std::uint64_t attributes) noexcept {
  unsigned long flags = MS_REMOUNT | MS_BIND;
  if ((attributes & abi::kMountRdonly) != 0) flags |= MS_RDONLY;
  if ((attributes & abi::kMountNosuid) != 0) flags |= MS_NOSUID;
  if ((attributes & abi::kMountNodev) != 0) flags |= MS_NODEV;
  if ((attributes & abi::kMountNoexec) != 0) flags |= MS_NOEXEC;
  return ::fchdir(root) == 0 && ::mount(nullptr, target, nullptr, flags, nullptr) == 0;
}

// Nothing is ever visible with looser flags than it should have: they are set before it is attached.
bool attach(int tree, int root, const char* target, std::uint64_t attributes) noexcept {
  const abi::MountAttr attr{attributes, 0, 0, 0};
  const bool set = abi::mount_setattr(tree, abi::kAtRecursive, attr) == 0;
  if (!set && errno != ENOSYS) return false;
  if (abi::move_mount(tree, root, target) != 0) return false;
  return set || remount(root, target, attributes);
}

int new_filesystem(const char* type, const char* const* options, std::uint64_t attributes) noexcept {
  const int fs = abi::fsopen(type);
  if (fs < 0) return -1;
  for (; options != nullptr && *options != nullptr; options += 2)
    if (abi::fsconfig(fs, abi::kFsconfigSetString, options[0], options[1]) != 0) return -1;
  if (abi::fsconfig(fs, abi::kFsconfigCreate, nullptr, nullptr) != 0) return -1;
  const int mount = abi::fsmount(fs, attributes);
  ::close(fs);
  return mount;
}

bool write_file(int dir, const char* path, const void* text, std::size_t size, unsigned mode, int flags,
                std::uint64_t extend_to = 0) noexcept {
  const int fd = ::openat(dir, path, O_WRONLY | O_CLOEXEC | flags, mode);
  if (fd < 0) return false;
  bool ok = ::write(fd, text, size) == static_cast<ssize_t>(size);
  if (extend_to != 0) ok = ok && ::ftruncate(fd, static_cast<off_t>(extend_to)) == 0;
  ::close(fd);
  return ok;
}

// Done while we still have the caller's own uid: a folder below a closed home is reached as the caller reaches it.
void clone_binds(ChildPlan& plan) noexcept {
  for (std::size_t i = 0; i < plan.op_count; ++i) {
    ChildOp& op = plan.ops[i];
    if (op.kind != RootOpKind::bind) continue;
    if (op.tree < 0)
      op.tree = abi::open_tree(AT_FDCWD, op.text, abi::kOpenTreeClone | abi::kOpenTreeCloexec | abi::kAtRecursive);
    if (op.tree < 0) fail(plan, Step::clone_bind, i);
    if (op.device) {
      struct stat status;
      // A container may have planted anything at /dev/null (CVE-2025-31133): look at the descriptor, not at the name.
      if (::fstat(op.tree, &status) != 0 || !S_ISCHR(status.st_mode) || status.st_rdev != makedev(op.major, op.minor)) {
        errno = ENODEV;
        fail(plan, Step::verify_device, i);
      }
    }
    if (op.inode != 0) {
      struct stat status;
      // What was looked at is what is lent: a guest that shares the folder may have swapped it for a link meanwhile.
      if (::fstat(op.tree, &status) != 0 || status.st_ino != op.inode || status.st_dev != op.holder) {
        errno = ESTALE;
        fail(plan, Step::clone_bind, i);
      }
    }
  }
}

int make_proc(const ChildPlan& plan, const ChildOp& op, int root, std::size_t at) noexcept {
  const int proc = new_filesystem("proc", nullptr, op.attributes & ~abi::kMountRdonly);
  if (proc < 0) fail(plan, Step::proc, at);
  for (std::size_t i = 0; plan.settings[i] != nullptr; i += 2) {
    const char* value = plan.settings[i + 1];
    // Bounds that older kernels do not have cannot be exceeded there either.
    if (!write_file(proc, plan.settings[i], value, std::strlen(value), 0, 0) && errno != ENOENT)
      fail(plan, Step::setting, i / 2);
  }
  // Read-only from here on.
  if (!attach(proc, root, op.target, op.attributes)) fail(plan, Step::proc, at);
  return proc;
}

void mask(const ChildPlan& plan, const ChildOp& op, int root, std::size_t at) noexcept {
  if (::faccessat(root, op.target, F_OK, 0) != 0) return;  // this kernel does not have it
  const int cover =
      abi::open_tree(root, op.directory ? "var/empty" : "dev/null", abi::kOpenTreeClone | abi::kOpenTreeCloexec);
  if (cover < 0 || !attach(cover, root, op.target, abi::kMountRdonly | abi::kMountNosuid | abi::kMountNoexec))
    fail(plan, Step::root_op, at);
  ::close(cover);
}

void apply(const ChildPlan& plan, ChildOp& op, int root, int& proc, std::size_t at) noexcept {
  bool ok = true;
  switch (op.kind) {
    case RootOpKind::directory:
      ok = ::mkdirat(root, op.target, op.mode) == 0 || errno == EEXIST;
      // mkdir is subject to the umask, which must not decide about /tmp.
      if (ok && op.mode != 0755) ok = ::fchmodat(root, op.target, op.mode, 0) == 0;
      break;
    case RootOpKind::link:
      ok = ::symlinkat(op.text, root, op.target) == 0;
      break;
    case RootOpKind::file:
      ok = write_file(root, op.target, op.text, op.text_size, op.mode, O_CREAT | O_EXCL, op.size);
      break;
    case RootOpKind::bind:
      if (!op.directory && !write_file(root, op.target, "", 0, 0444, O_CREAT) && errno != EACCES)
        fail(plan, Step::root_op, at);
      ok = attach(op.tree, root, op.target, op.attributes);
      ::close(op.tree);
      break;
    case RootOpKind::scratch: {
      const int tree = abi::open_tree(root, op.target, abi::kOpenTreeClone | abi::kOpenTreeCloexec);
      ok = tree >= 0 && abi::move_mount(tree, root, op.target) == 0;
      ::close(tree);
      break;
    }
    case RootOpKind::tmpfs: {
      const int tree = new_filesystem("tmpfs", op.options, op.attributes);
      ok = tree >= 0 && abi::move_mount(tree, root, op.target) == 0;
      ::close(tree);
      break;
    }
    case RootOpKind::devpts: {
      static constexpr const char* kOptions[] = {"ptmxmode", "0666", "mode", "0620", "max", "64", nullptr};
      const int tree = new_filesystem("devpts", kOptions, op.attributes);
      ok = tree >= 0 && abi::move_mount(tree, root, op.target) == 0;
      ::close(tree);
      break;
    }
    case RootOpKind::proc:
      proc = make_proc(plan, op, root, at);
      break;
    case RootOpKind::mask:
      break;  // later, see close_box
  }
  if (!ok) fail(plan, Step::root_op, at);
}

// Written into the box's own root and unlinked again: no file of the host's is ever /proc/1/exe (CVE-2019-5736), and no
// name is left for the guest to see.
int place_init(const ChildPlan& plan, int root) noexcept {
  constexpr const char* kName = ".init";
  if (!write_file(root, kName, plan.init_image, plan.init_size, 0500, O_CREAT | O_EXCL)) fail(plan, Step::init);
  const int fd = ::openat(root, kName, O_PATH | O_CLOEXEC);
  if (fd < 0 || ::unlinkat(root, kName, 0) != 0) fail(plan, Step::init, 1);
  return fd;
}

// Builds the root and enters it. The old root is then hidden, not yet gone: close_box detaches it.
int build_root(ChildPlan& plan, int& proc, int& init) noexcept {
  const int root = new_filesystem("tmpfs", plan.root_options, abi::kMountNosuid | abi::kMountNodev);
  if (root < 0) fail(plan, Step::root);
  // The new root must hang in our namespace before anything can be mounted below it (detached trees take no mounts
  // before 6.15). Every source was cloned already, so hiding the attach point hides nothing we need.
  if (abi::move_mount(root, AT_FDCWD, plan.attach_point) != 0) fail(plan, Step::attach);
  // Entered while it is empty: a link that an earlier guest left in a lent folder then leads nowhere but into the box.
  // The old root still lies over it, out of reach of any path, because a new /proc is only granted where one is
  // visible.
  if (::fchdir(root) != 0 || abi::pivot_root(".", ".") != 0) fail(plan, Step::pivot);
  for (std::size_t i = 0; i < plan.op_count; ++i) apply(plan, plan.ops[i], root, proc, i);
  init = place_init(plan, root);
  return root;
}

// What nothing of the guest's own preparation needs.
void close_box(const ChildPlan& plan, int root) noexcept {
  // The old root lies over the new one at "." and is detached from there: no path leads back to it.
  if (::fchdir(root) != 0 || ::umount2(".", MNT_DETACH) != 0 || ::chdir("/") != 0) fail(plan, Step::pivot, 1);
  constexpr std::uint64_t kSealed = abi::kMountRdonly | abi::kMountNosuid | abi::kMountNodev;
  // Not recursive: the scratch folders are mounts of their own and stay writable.
  if (abi::mount_setattr(root, 0, {kSealed, 0, 0, 0}) != 0 && (errno != ENOSYS || !remount(root, ".", kSealed)))
    fail(plan, Step::pivot, 2);
  for (std::size_t i = 0; i < plan.op_count; ++i)
    if (plan.ops[i].kind == RootOpKind::mask) mask(plan, plan.ops[i], root, i);
  if (::chdir("/") != 0) fail(plan, Step::pivot, 3);
}

// init must not stay in the host's: /proc/1/net would show the guest the host's connections.
// By descriptor: the guest's process has given up too much by now for us to look into it.
void join_namespaces(const ChildPlan& plan, int sync) noexcept {
  int fds[4];
  const int count = receive(sync, Message::namespaces, fds);
  for (int i = 0; i < count; ++i)
    if (::setns(fds[i], 0) != 0) fail(plan, Step::namespaces, 1);
}

// For limits that no cgroup binds, the supervisor looks in from outside.
void send_probes(const ChildPlan& plan, int root, int proc) noexcept {
  const int fds[2] = {proc, ::openat(root, "tmp", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  if (!send_frame(plan.status, {Message::probes, Step::handshake, 0, 0, 0}, fds, 2)) fail(plan, Step::handshake, 1);
  ::close(fds[1]);
}

[[noreturn]] void become_init(const ChildPlan& plan, int init, int sync) noexcept {
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

}  // namespace

void become_guest_ids(const ChildPlan& plan) noexcept {
  if (!plan.set_ids) return;
  // Raw calls: glibc's wrappers signal all threads of a process that we are only a copy of.
  if (plan.drop_groups && ::syscall(SYS_setgroups, 0, nullptr) != 0) fail(plan, Step::ids, 0);
  if (::syscall(SYS_setresgid, plan.uid, plan.uid, plan.uid) != 0) fail(plan, Step::ids, 1);
  // Our own capabilities survive: they are lost only when the uid changes from the namespace's root to another.
  if (plan.uid != 0 && ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) fail(plan, Step::ids, 2);
  if (::syscall(SYS_setresuid, plan.uid, plan.uid, plan.uid) != 0) fail(plan, Step::ids, 3);
}

void join_cgroups(const ChildPlan& plan, int channel) noexcept {
  int fds[4];
  const int count = receive(channel, Message::cgroups, fds);
  for (int i = 0; i < count; ++i) {
    // "0" is the writer itself: 0.05 ms here, against 8 to 12 ms when another process writes our pid.
    if (::write(fds[i], "0", 1) != 1) fail(plan, Step::cgroup, static_cast<std::size_t>(i));
    ::close(fds[i]);
  }
}

// The guest's process is to make the namespaces while we build the root. A fork is left on the CPU of its parent when
// the others are busy, and the supervisor's CPU is, for a moment still: then the two of us would share one and leave
// the other idle. It goes back to all its CPUs before it becomes the guest.
static void spread(const ChildPlan& plan, pid_t guest) noexcept {
  cpu_set_t others = plan.allowed;
  unsigned here = 0;
  if (::syscall(SYS_getcpu, &here, nullptr, nullptr) != 0 || here >= CPU_SETSIZE) return;
  CPU_CLR(here, &others);
  (void)::syscall(SYS_sched_setaffinity, guest, sizeof others, &others);
}

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
  if (plan.spread) spread(plan, static_cast<pid_t>(guest));
  ::close(sync[1]);
  ::close(host_proc);
  int proc = -1;
  int init = -1;
  clone_binds(plan);
  (void)receive(plan.status, Message::go, nullptr);
  become_guest_ids(plan);
  const int root = build_root(plan, proc, init);
  if (::send(sync[0], "r", 1, MSG_NOSIGNAL) != 1) ::_exit(127);
  if (plan.send_probes) send_probes(plan, root, proc);
  close_box(plan, root);
  join_namespaces(plan, sync[0]);
  become_init(plan, init, sync[0]);
}

}  // namespace pctx
