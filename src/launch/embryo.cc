#include "launch/embryo.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <new>
#include <utility>

#include "launch/fill_plan.h"
#include "sys/blocked_signals.h"
#include "sys/diagnose.h"
#include "sys/elsewhere.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

// The user namespace must come first and pid with the clone; a mount namespace needs no more than that. These may
// follow.
constexpr std::uint64_t kLateNamespaces = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;

struct Ends {
  Fd ours, theirs;
};
Result<Ends> make_channel() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return os_error("cannot make a socket pair");
  return Ends{Fd{pair[0]}, Fd{pair[1]}};
}

Result<Lent> fill_within_bounds(const Plan& plan, const Command& command, SharedMemory& memory, ChildPlan& child) {
  try {
    return fill(plan, command, memory, child);
  } catch (const std::bad_alloc&) {
    return usage_error("the command, its variables and its PATH are longer than a box can be told",
                       "give fewer or shorter ones: a long list belongs in a file");
  }
}

}  // namespace

Result<Embryo> Embryo::conceive(std::uint64_t namespaces, std::array<int, 3> std_fds, int cgroup,
                                ChildMain child_main) {
  Embryo embryo;
  embryo.memory_ = PCTX_TRY(SharedMemory::make());
  Ends status = PCTX_TRY(make_channel()), guest = PCTX_TRY(make_channel());
  ChildPlan born{};
  born.status = status.theirs.get();
  born.guest_channel = guest.theirs.get();
  std::copy(std_fds.begin(), std_fds.end(), born.std_fds);
  born.late_namespaces = static_cast<int>(namespaces & kLateNamespaces);
  CPU_ZERO(&born.allowed);
  born.spread = ::sched_getaffinity(0, sizeof born.allowed, &born.allowed) == 0 && CPU_COUNT(&born.allowed) > 1;
  embryo.child_ = embryo.memory_.array(std::span<const ChildPlan>{&born, 1});

  Spawned& box = embryo.box_;
  int pidfd = -1;
  abi::CloneArgs args{};
  args.flags = (namespaces & ~kLateNamespaces) | CLONE_PIDFD | abi::kCloneClearSighand;
  args.pidfd = reinterpret_cast<std::uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  if (cgroup >= 0) {
    args.flags |= abi::kCloneIntoCgroup;
    args.cgroup = static_cast<std::uint64_t>(cgroup);
  }
  {
    const sys::BlockedSignals blocked;
    const long pid = abi::clone3(args);
    if (pid == 0) {
      ::close(status.ours.get());
      ::close(guest.ours.get());
      child_main(*embryo.child_);
    }
    if (pid < 0) return explain_clone_failure(errno);
    box.pid = static_cast<pid_t>(pid);
    // A fork often stays on the CPU of its parent, though another one is idle, and we are busy with the plan.
    if (born.spread) sys::send_elsewhere(box.pid, born.allowed);
  }
  box.pidfd = Fd{pidfd};
  box.status = std::move(status.ours);
  box.guest_channel = std::move(guest.ours);
  return embryo;
}

Embryo& Embryo::operator=(Embryo&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(child_, other.child_);
  std::swap(box_, other.box_);
  return *this;
}

Embryo::~Embryo() {
  if (!box_.pidfd) return;
  (void)abi::pidfd_send_signal(box_.pidfd.get(), SIGKILL);
  while (::waitpid(box_.pid, nullptr, __WALL) < 0 && errno == EINTR) {
  }
}

Result<Spawned> Embryo::grow(const Plan& plan, const Command& command) && {
  const Lent lent = PCTX_TRY(fill_within_bounds(plan, command, memory_, *child_));
  // A child that failed early has closed its end; what it has to say is read from the status socket.
  const auto tell = [](int channel, Message kind) { (void)send_frame(channel, {kind, Step::handshake, 0, 0, 0}); };
  for (const LentTree& each : lent.trees) {
    const int tree = each.tree.get();
    const StatusFrame frame{Message::tree, Step::handshake, 0, static_cast<std::uint16_t>(each.op), 0};
    PCTX_TRY(hand_over(box_.status.get(), frame, {&tree, 1}, "a lent folder"));
  }
  tell(box_.status.get(), Message::planned);
  tell(box_.guest_channel.get(), Message::planned);
  if ((plan.namespaces & CLONE_NEWUSER) != 0) PCTX_TRY(write_id_maps(box_.pid, plan.ids));
  tell(box_.status.get(), Message::go);
  return std::move(box_);
}

}  // namespace pctx
