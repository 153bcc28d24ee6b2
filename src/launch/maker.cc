// The maker's own process. Like child.cc it runs in a copy of the parent and allocates nothing.
#include "launch/maker.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

#include <poll.h>

#include "launch/binder.h"
#include "launch/child_root.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

constexpr int kControl = 3;
constexpr int kInitImage = 4;
constexpr const char* kScratchStage = "srv";

// Everything that a box may write, or that shows a namespace, belongs to one box.
bool per_box(RootOpKind kind) noexcept {
  return kind == RootOpKind::scratch || kind == RootOpKind::tmpfs || kind == RootOpKind::devpts ||
         kind == RootOpKind::mask;
}

// In the template /proc is whole and writable: the kernel grants a box a /proc of its own only where such a one is
// visible. No box ever sees it.
void mount_whole_proc(const ChildPlan& plan, int root) noexcept {
  const int proc = new_filesystem("proc", nullptr, abi::kMountNosuid | abi::kMountNodev | abi::kMountNoexec);
  if (proc < 0 || abi::move_mount(proc, root, "proc") != 0) fail(plan, Step::proc);
  ::close(proc);
}

int build_template(ChildPlan& plan) noexcept {
  const int root = enter_root(plan);
  int proc = -1;
  for (std::size_t i = 0; i < plan.op_count; ++i) {
    if (plan.ops[i].kind == RootOpKind::proc)
      mount_whole_proc(plan, root);
    else if (!per_box(plan.ops[i].kind))
      apply(plan, plan.ops[i], root, proc, i);
  }
  if (::mkdirat(root, kScratchStage, 0755) != 0) fail(plan, Step::root);
  const int init = place_init(plan, root);
  detach_old_root(plan, root);
  seal_root(plan, root);
  ::close(root);
  return init;
}

// One file system with one size and inode limit for all scratch folders of the box. It is attached for a moment only:
// a part of it can be cloned only from where it is visible.
void make_scratch(const ChildPlan& plan, int root) noexcept {
  const int scratch = new_filesystem("tmpfs", plan.scratch_options, abi::kMountNosuid | abi::kMountNodev);
  if (scratch < 0 || abi::move_mount(scratch, root, kScratchStage) != 0) fail(plan, Step::root, 1);
  char name[2] = {'a', 0};
  for (std::size_t i = 0; i < plan.op_count; ++i) {
    const ChildOp& op = plan.ops[i];
    if (op.kind != RootOpKind::scratch) continue;
    if (::mkdirat(scratch, name, 0700) != 0 || ::fchmodat(scratch, name, op.mode, 0) != 0) fail(plan, Step::root_op, i);
    const int tree = abi::open_tree(scratch, name, abi::kOpenTreeClone | abi::kOpenTreeCloexec);
    if (tree < 0 || !make_inside(op, tree) || abi::move_mount(tree, root, op.target) != 0) fail(plan, Step::root_op, i);
    ::close(tree);
    ++name[0];
  }
  ::close(scratch);
  if (::fchdir(root) != 0 || ::umount2(kScratchStage, MNT_DETACH) != 0) fail(plan, Step::root, 2);
}

struct Order {
  bool zygote;
  int first_pid;
  int status;
  int std_fds[3];  // of a Worker's box the first: closed when init has started
  int tasks[kMaxFrameFds];
  std::size_t task_count;
};

// run_guest talks with a pid 1 that builds the root at the same time; here all is built already.
[[noreturn]] void become_zygote(ChildPlan plan, const Order& order, int whole_proc) noexcept {
  int sync[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) != 0 || ::send(sync[0], "r", 1, MSG_NOSIGNAL) != 1)
    fail(plan, Step::fork);
  ::close(sync[0]);
  std::memcpy(plan.std_fds, order.std_fds, sizeof plan.std_fds);
  plan.late_namespaces = 0;
  plan.network = nullptr;
  plan.new_network = plan.new_uts = plan.cgroup_namespace = plan.set_ids = plan.spread = false;
  plan.joins_cgroups = false;
  plan.guest_channel = -1;
  plan.launch_profile = nullptr;  // we have it from the first process of the pool's template
  run_guest(plan, sync[1], whole_proc);
}

[[noreturn]] void run_cut(ChildPlan plan, const Order& order, int gate) noexcept {
  char byte;
  plan.status = order.status;
  plan.send_probes = plan.send_probes && !order.zygote;
  // Closed when our ids are mapped.
  if (::read(gate, &byte, 1) != 0) ::_exit(127);
  const int root = ::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) fail(plan, Step::root);
  const int whole_proc = order.zygote ? ::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
  name_host(plan);
  // A Zygote has no business with the network of its Workers.
  if (plan.network != nullptr && !order.zygote)
    make_network(plan);
  else if (plan.new_network)
    loopback_up(plan);
  for (std::size_t i = 0; i < order.task_count; ++i)
    if (::write(order.tasks[i], "0", 1) != 1) fail(plan, Step::cgroup, i);
  if (plan.cgroup_namespace && ::unshare(CLONE_NEWCGROUP) != 0) fail(plan, Step::cgroup_namespace);
  make_scratch(plan, root);
  int proc = -1;
  for (std::size_t i = 0; i < plan.op_count; ++i) {
    ChildOp& op = plan.ops[i];
    if (op.kind == RootOpKind::tmpfs || op.kind == RootOpKind::devpts) apply(plan, op, root, proc, i);
    if (op.kind == RootOpKind::proc) {
      // The settings bind in a user namespace: the Zygote's must stay able to have others below it.
      proc = order.zygote ? make_proc(plan, op, root, i, 0, Settings::none)
                          : make_proc(plan, op, root, i, order.first_pid, Settings::of_both_namespaces);
    }
  }
  if (plan.send_probes) {
    send_socket_probe(plan);
    send_probes(plan, root, proc);
  }
  apply_masks(plan, root);
  ::close(proc);
  if (order.zygote) become_zygote(plan, order, whole_proc);
  become_init(plan, kInitImage, order.std_fds[0]);
}

bool write_map(const char* pid, const char* file, unsigned id) noexcept {
  char path[64], text[64];
  std::memset(path, 0, sizeof path);
  std::strcat(std::strcat(std::strcat(std::strcpy(path, "/proc/"), pid), "/"), file);
  char* end = std::to_chars(text, text + 16, id).ptr;
  *end++ = ' ';
  end = std::to_chars(end, end + 16, id).ptr;
  *end++ = ' ';
  *end++ = '1';
  return write_file(AT_FDCWD, path, text, static_cast<std::size_t>(end - text), 0, 0);
}

// One id, the same inside and out: the box's owner is the Zygote's own uid.
bool map_ids(pid_t pid, unsigned uid) noexcept {
  char number[16];
  std::memset(number, 0, sizeof number);
  std::to_chars(number, number + sizeof number - 1, pid);
  return write_map(number, "uid_map", uid) && write_map(number, "gid_map", uid);
}

// Who was cut under which tag: for the account of what a dead box has used.
struct Living {
  pid_t pid;
  std::uint16_t tag;
};
std::array<Living, 4096> living;  // zero pages until used
pid_t last_zygote = 0;            // an earlier one may still be dying under the same tag

void cut(const ChildPlan& plan, const StatusFrame& request, const Order& order) noexcept {
  int gate[2];
  int pidfd = -1;
  long pid = -1;
  if (::pipe2(gate, O_CLOEXEC) == 0) {
    abi::CloneArgs args{};
    args.flags = static_cast<std::uint64_t>(CLONE_NEWNS | plan.late_namespaces) | CLONE_PIDFD | abi::kCloneClearSighand;
    if (!order.zygote) args.flags |= CLONE_NEWUSER | CLONE_NEWPID;
    args.pidfd = reinterpret_cast<std::uint64_t>(&pidfd);
    args.exit_signal = SIGCHLD;
    pid = abi::clone3(args);
    if (pid == 0) {
      ::close(gate[1]);
      run_cut(plan, order, gate[0]);
    }
    int error = errno;
    if (pid > 0 && !order.zygote && !map_ids(static_cast<pid_t>(pid), plan.uid)) {
      error = errno;
      (void)abi::pidfd_send_signal(pidfd, SIGKILL);
      pid = -1;
    } else if (pid > 0) {
      for (Living& entry : living)
        if (entry.pid == 0) {
          entry = {static_cast<pid_t>(pid), request.index};
          break;
        }
      if (order.zygote) last_zygote = static_cast<pid_t>(pid);
    }
    ::close(gate[0]);
    ::close(gate[1]);
    errno = error;
  }
  const StatusFrame reply{Message::cut, Step::fork, 0, request.index, pid > 0 ? 0 : errno};
  (void)send_frame(kControl, reply, &pidfd, pid > 0 ? 1 : 0);
  ::close(pidfd);
}

void blind() noexcept {
  const int zygote = static_cast<int>(::syscall(SYS_pidfd_open, last_zygote, 0));
  const long child = ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) {
    static constexpr const char* kOptions[] = {"size", "4096", "nr_inodes", "2", "mode", "0555", nullptr};
    const bool inside = zygote >= 0 && ::setns(zygote, CLONE_NEWNS) == 0;
    const int cover = inside ? new_filesystem("tmpfs", kOptions, abi::kMountRdonly | abi::kMountNosuid) : -1;
    ::_exit(cover >= 0 && abi::move_mount(cover, AT_FDCWD, "/proc") == 0 ? 0 : 1);
  }
  ::close(zygote);
  int status = -1;
  if (child > 0) (void)::waitpid(static_cast<pid_t>(child), &status, __WALL);
  const StatusFrame reply{Message::blinded, Step::fork, 0, kZygoteTag, status};
  (void)send_frame(kControl, reply);
}

std::int32_t cpu_of(const rusage& usage) noexcept {
  return static_cast<std::int32_t>((usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
                                   (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000);
}

void tell_orphan(pid_t pid, int status, const rusage& usage) noexcept {
  const auto high = static_cast<std::uint8_t>(pid >> 16);  // pids have 22 bits at most
  (void)send_frame(kControl, {Message::spent, Step::fork, high, static_cast<std::uint16_t>(pid), cpu_of(usage)});
  (void)send_frame(kControl, {Message::orphan, Step::fork, high, static_cast<std::uint16_t>(pid), status});
}

void reap() noexcept {
  rusage usage;
  int status = 0;
  pid_t pid;
  while ((pid = ::wait4(-1, &status, WNOHANG | __WALL, &usage)) > 0) {
    const auto entry = std::find_if(living.begin(), living.end(), [&](const Living& each) { return each.pid == pid; });
    // What a Zygote forks into a box falls to us, not to the box's init: the kernel looks at where the forker was.
    // init itself cannot end before everything in its box has been reaped, so this message comes before its own.
    if (entry == living.end()) {
      tell_orphan(pid, status, usage);
      continue;
    }
    const std::uint8_t complete = status == 0 ? 1 : 0;  // init has waited for everybody else
    (void)send_frame(kControl, {Message::reaped, Step::fork, complete, entry->tag, cpu_of(usage)});
    *entry = {};
  }
}

// False at the end of the Broker's side.
bool serve_request(const ChildPlan& plan) noexcept {
  StatusFrame request;
  int fds[kMaxFrameFds];
  std::size_t count = 0;
  const std::ptrdiff_t got = receive_frame(kControl, request, fds, count, 0);
  if (got < 0 && errno == EINTR) return true;
  if (got != sizeof request) return false;
  if (request.kind == Message::blind) {
    blind();
    return true;
  }
  Order order;
  std::memset(&order, 0, sizeof order);
  order.zygote = request.kind == Message::cut_zygote;
  order.first_pid = request.value;
  const std::size_t fixed = order.zygote ? 4 : 2;
  if (count < fixed) return false;
  order.status = fds[0];
  for (std::size_t i = 1; i < fixed; ++i) order.std_fds[i - 1] = fds[i];
  for (std::size_t i = fixed; i < count; ++i) order.tasks[order.task_count++] = fds[i];
  cut(plan, request, order);
  for (std::size_t i = 0; i < count; ++i) ::close(fds[i]);
  return true;
}

[[noreturn]] void run_maker(ChildPlan& plan) noexcept {
  ::umask(022);
  // The Broker's own way of giving way (SCHED_BATCH) is inherited, and would keep a Worker from starting at once.
  const sched_param none{};
  (void)::syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &none);
  await_plan(plan);
  // Where it was good for us to begin is nothing for what we make, which lasts.
  if (plan.spread) (void)::syscall(SYS_sched_setaffinity, 0, sizeof plan.allowed, &plan.allowed);
  const int host_proc = ::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
  enter_launch_profile(plan, host_proc);
  ::close(host_proc);
  clone_binds(plan);
  await_go(plan);
  become_guest_ids(plan);
  // The change of ids has closed us to /proc, and so our children: their id maps are files there, which we must write.
  // Nobody who could abuse that sees our pid namespace.
  if (::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0) fail(plan, Step::ids, 4);
  if (plan.folder) {
    const int binder = start_binder(plan);
    if (!send_frame(plan.status, {Message::binder, Step::handshake, 0, 0, 0}, &binder, 1))
      fail(plan, Step::handshake, 6);
    ::close(binder);
  }
  const int init = build_template(plan);
  const int high[2] = {::fcntl(plan.status, F_DUPFD, 16), ::fcntl(init, F_DUPFD, 16)};
  if (high[0] < 0 || high[1] < 0) fail(plan, Step::descriptors);
  if (::dup3(high[0], kControl, O_CLOEXEC) < 0 || ::dup3(high[1], kInitImage, O_CLOEXEC) < 0 ||
      abi::close_range(0, 2, 0) != 0 || abi::close_range(kInitImage + 1, ~0U, 0) != 0)
    fail(plan, Step::descriptors, 1);
  plan.status = kControl;
  (void)::prctl(PR_SET_NAME, "pctx-maker");
  // Every signal is blocked since before the clone.
  sigset_t children;
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  const int signals = ::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) fail(plan, Step::descriptors, 2);
  if (!send_frame(kControl, {Message::ready, Step::handshake, 0, 0, 0})) ::_exit(127);
  for (;;) {
    pollfd fds[2] = {{kControl, POLLIN, 0}, {signals, POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) ::_exit(1);
    if (fds[1].revents != 0) {
      signalfd_siginfo drained;
      while (::read(signals, &drained, sizeof drained) > 0) {
      }
      reap();
    }
    // Our end is the end of everything that was cut here.
    if (fds[0].revents != 0 && !serve_request(plan)) ::_exit(0);
  }
}

}  // namespace

Result<Maker> start_maker(const Plan& plan, const Command& command) {
  Spawned started = PCTX_TRY(spawn(plan, command, {-1, -1, -1}, -1, run_maker));
  return Maker{started.pid, std::move(started.pidfd), std::move(started.status)};
}

Result<void> order_cut(const Maker& maker, const CutOrder& order) {
  std::vector<int> fds{order.status};
  if (order.zygote)
    fds.insert(fds.end(), {order.in, order.out, order.err});
  else
    fds.push_back(order.ready);
  fds.insert(fds.end(), order.tasks.begin(), order.tasks.end());
  if (fds.size() > kMaxFrameFds) return os_error("a box joins too many cgroups", E2BIG);
  const StatusFrame request{order.zygote ? Message::cut_zygote : Message::cut_worker, Step::fork, 0, order.tag,
                            order.first_pid};
  if (!send_frame(maker.control.get(), request, fds.data(), fds.size())) return os_error("cannot reach the maker");
  return {};
}

Result<void> order_blinding(const Maker& maker) {
  if (!send_frame(maker.control.get(), {Message::blind, Step::fork, 0, 0, 0}))
    return os_error("cannot reach the maker");
  return {};
}

}  // namespace pctx
