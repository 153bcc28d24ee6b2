#include "launch/spawn.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "launch/netlink.h"
#include "sys/diagnose.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

extern "C" const char pctx_init_begin[];
extern "C" const char pctx_init_end[];

namespace pctx {
namespace {

// The user namespace must come first and pid with the clone; a mount namespace needs no more than that. These may
// follow.
constexpr std::uint64_t kLateNamespaces = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;

// Owns the memory that a ChildPlan points into. Lives in the parent until the child has exec'd or died; the child works
// on its own copy of these pages.
class ChildMemory {
 public:
  const char* keep(std::string text) { return strings_.emplace_back(std::move(text)).c_str(); }
  const char* const* list(const std::vector<std::string>& items) {
    auto& pointers = lists_.emplace_back();
    for (const std::string& item : items) pointers.push_back(keep(item));
    pointers.push_back(nullptr);
    return pointers.data();
  }
  // "size=1,mode=2" as key, value, key, value.
  const char* const* options(std::string_view text) {
    std::vector<std::string> words;
    for (std::string_view pair : sys::split(text, ',')) {
      const std::size_t equals = pair.find('=');
      words.emplace_back(pair.substr(0, equals));
      words.emplace_back(pair.substr(equals + 1));
    }
    return list(words);
  }

  std::vector<ChildOp> ops;
  std::vector<ChildRule> rules;
  std::vector<ResourceLimit> rlimits;
  std::vector<Fd> trees;
  NetlinkMessages local4, local6, watched;
  ChildNetwork network;

 private:
  std::deque<std::string> strings_;
  std::deque<std::vector<const char*>> lists_;
};

// As a shell finds a command, but every candidate is written down before the clone.
std::vector<std::string> candidates(const Command& command, const std::string& path) {
  const std::string& name = command.argv[0];
  if (name.find('/') != std::string::npos) return {name};
  std::vector<std::string> found;
  for (std::string_view directory : sys::split(path, ':'))
    found.push_back(sys::join(directory.empty() ? "." : directory, name));
  return found;
}

// A limit above the hard limit we live under ourselves cannot be given; the lower one binds just as well.
std::vector<ResourceLimit> clamp(std::vector<ResourceLimit> limits) {
  for (ResourceLimit& limit : limits) {
    rlimit own{};
    if (::getrlimit(static_cast<__rlimit_resource_t>(limit.resource), &own) == 0 && own.rlim_max != RLIM_INFINITY)
      limit.value = std::min(limit.value, own.rlim_max);
  }
  return limits;
}

cpu_set_t pick_cpus(const cpu_set_t& allowed, unsigned count) {
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  // Not always the first ones: many boxes would share them.
  const unsigned offset = static_cast<unsigned>(::getpid());
  for (unsigned i = 0; i < CPU_SETSIZE && count > 0; ++i) {
    const unsigned cpu = (i + offset) % CPU_SETSIZE;
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &chosen), --count;
  }
  return chosen;
}

Result<void> build_ops(const Plan& plan, ChildMemory& memory) {
  memory.ops.reserve(plan.root.size());
  std::map<std::pair<uid_t, gid_t>, Fd> mappings;
  for (const RootOp& op : plan.root) {
    ChildOp child{.kind = op.kind,
                  .directory = op.directory,
                  .device = op.device,
                  .mode = op.mode,
                  .size = op.size,
                  .attributes = op.attributes,
                  .target = op.target.c_str(),
                  .text = op.text.c_str(),
                  .text_size = op.text.size(),
                  .major = op.major,
                  .minor = op.minor,
                  .options = op.kind == RootOpKind::tmpfs ? memory.options(op.text) : nullptr,
                  .inode = op.lent ? op.lent->inode : 0,
                  .holder = op.lent ? op.lent->device : 0,
                  .tree = -1};
    if (op.idmap) {
      Fd& mapping = mappings[{op.lent->uid, op.lent->gid}];
      if (!mapping) mapping = PCTX_TRY(id_mapping(op.lent->uid, op.lent->gid, plan.ids.host_uid, plan.ids.host_gid));
      auto tree = idmapped_tree(*op.lent, mapping.get());
      const bool writable = (op.attributes & abi::kMountRdonly) == 0;
      if (tree) {
        child.tree = tree->get();
        memory.trees.push_back(*std::move(tree));
      } else if (writable && (op.lent->mode & 02) == 0) {
        return std::move(tree).error();
      }  // lent read-only: what everyone may read can still be read without the mapping
    }
    memory.ops.push_back(child);
  }
  return {};
}

const ChildNetwork* build_network(const NetworkPlan& plan, ChildMemory& memory) {
  memory.local4 = local_routes(plan, false);
  memory.local6 = local_routes(plan, true);
  memory.watched = watched_route(plan);
  const auto batch = [](const NetlinkMessages& messages) {
    return NetlinkBatch{messages.bytes.data(), messages.bytes.size(), messages.last};
  };
  memory.network = {
      .local4 = batch(memory.local4),
      .local6 = batch(memory.local6),
      .watched_route = batch(memory.watched),
      .ports = plan.ports.data(),
      .port_count = plan.ports.size(),
      .watched = {static_cast<unsigned short>(plan.watched.size()), const_cast<sock_filter*>(plan.watched.data())}};
  return &memory.network;
}

Result<ChildPlan> build(const Plan& plan, const Command& command, std::array<int, 3> std_fds, ChildMemory& memory) {
  PCTX_TRY(build_ops(plan, memory));
  std::vector<std::string> settings;
  for (const KernelSetting& setting : plan.settings) {
    settings.push_back("sys/" + setting.path);
    settings.push_back(setting.value);
  }
  for (const LandlockRule& rule : plan.landlock) memory.rules.push_back({rule.path.c_str(), rule.access});
  memory.rlimits = clamp(plan.rlimits);
  ChildPlan child{};
  std::copy(std_fds.begin(), std_fds.end(), child.std_fds);
  child.ops = memory.ops.data();
  child.op_count = memory.ops.size();
  child.root_options = memory.options(plan.root_options);
  child.scratch_options = memory.options(plan.scratch_options);
  child.attach_point = plan.attach_point.c_str();
  child.settings = memory.list(settings);
  child.late_namespaces = static_cast<int>(plan.namespaces & kLateNamespaces);
  child.new_network = (plan.namespaces & CLONE_NEWNET) != 0;
  if (plan.network) child.network = build_network(*plan.network, memory);
  child.new_uts = (plan.namespaces & CLONE_NEWUTS) != 0;
  child.cgroup_namespace = plan.cgroup_namespace;
  child.cgroup_namespace_optional = !plan.policy.require.test(index(Layer::cgroup_namespace));
  child.uid = plan.ids.inside;
  child.drop_groups = plan.ids.drop_groups;
  child.set_ids = true;
  child.hostname = plan.policy.hostname.c_str();
  child.hostname_size = plan.policy.hostname.size();
  child.init_image = pctx_init_begin;
  child.init_size = static_cast<std::size_t>(pctx_init_end - pctx_init_begin);
  child.terminal = plan.terminal;
  child.folder = plan.folder;
  if (plan.terminal) (void)::ioctl(STDIN_FILENO, TIOCGWINSZ, &child.window);
  child.send_probes = plan.watchdog.any();
  child.workdir = plan.workdir.c_str();
  CPU_ZERO(&child.allowed);
  child.spread = ::sched_getaffinity(0, sizeof child.allowed, &child.allowed) == 0 && CPU_COUNT(&child.allowed) > 1;
  child.pin = plan.pin_cpus != 0;
  child.cpus = child.pin ? pick_cpus(child.allowed, plan.pin_cpus) : child.allowed;
  child.rlimits = memory.rlimits.data();
  child.rlimit_count = memory.rlimits.size();
  child.keyring = plan.keyring;
  if (!plan.apparmor.empty())
    child.apparmor = memory.keep(fmt::format("{} {}", plan.apparmor_stack ? "stack" : "exec", plan.apparmor));
  child.landlock_handled = plan.landlock_handled;
  child.landlock_scoped = plan.landlock_scoped;
  // The parent knows the ABI by what the plan asks for: scopes came with 6, and 24 bytes with them.
  child.landlock_size = abi::landlock_ruleset_size(plan.landlock_scoped != 0 ? 6 : 1);
  child.rules = memory.rules.data();
  child.rule_count = memory.rules.size();
  child.filter = {static_cast<unsigned short>(plan.filter.size()), const_cast<sock_filter*>(plan.filter.data())};
  child.listener = plan.listener;
  child.candidates = memory.list(candidates(command, plan.path));
  child.argv = memory.list(command.argv);
  child.envp = memory.list(plan.env);
  return child;
}

// Keeps every signal away while the child is a copy of us: a handler of ours must not run in it.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Result<Spawned> spawn(const Plan& plan, const Command& command, std::array<int, 3> std_fds, int cgroup,
                      ChildMain child_main) {
  ChildMemory memory;
  ChildPlan child = PCTX_TRY(build(plan, command, std_fds, memory));
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return os_error("cannot make a socket pair");
  Fd ours{pair[0]}, theirs{pair[1]};
  child.status = theirs.get();
  Spawned box;
  Fd guest_end;
  child.guest_channel = -1;
  if (plan.cgroup.version == CgroupVersion::v1) {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
      return os_error("cannot make a socket pair");
    box.guest_channel = Fd{pair[0]};
    guest_end = Fd{pair[1]};
    child.guest_channel = guest_end.get();
  }
  int pidfd = -1;
  abi::CloneArgs args{};
  args.flags = (plan.namespaces & ~kLateNamespaces) | CLONE_PIDFD | abi::kCloneClearSighand;
  args.pidfd = reinterpret_cast<std::uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  if (cgroup >= 0) {
    args.flags |= abi::kCloneIntoCgroup;
    args.cgroup = static_cast<std::uint64_t>(cgroup);
  }
  {
    const BlockedSignals blocked;
    const long pid = abi::clone3(args);
    if (pid == 0) {
      ::close(ours.get());
      ::close(box.guest_channel.get());
      child_main(child);
    }
    if (pid < 0) return explain_clone_failure(errno);
    box.pid = static_cast<pid_t>(pid);
  }
  box.pidfd = Fd{pidfd};
  box.status = std::move(ours);
  const bool mapped_ids = (plan.namespaces & CLONE_NEWUSER) != 0;
  if (auto mapped = mapped_ids ? write_id_maps(box.pid, plan.ids) : Result<void>{}; !mapped) {
    (void)abi::pidfd_send_signal(box.pidfd.get(), SIGKILL);
    return std::move(mapped).error();
  }
  // A child that failed early has closed its end; what it has to say is read from the status socket.
  (void)send_frame(box.status.get(), {Message::go, Step::handshake, 0, 0, 0});
  return box;
}

FrameRead read_frame(int socket, StatusFrame& frame, FrameFds& fds) {
  std::array<int, kMaxFrameFds> numbers{};
  std::size_t count = 0;
  std::ptrdiff_t got = receive_frame(socket, frame, numbers.data(), count, MSG_DONTWAIT);
  // A child that failed with a message of ours unread resets the connection, which is told before its own last words.
  if (got < 0 && errno == ECONNRESET) got = receive_frame(socket, frame, numbers.data(), count, MSG_DONTWAIT);
  const int code = errno;
  for (std::size_t i = 0; i < count; ++i) fds[i] = Fd{numbers[i]};
  if (got < 0 && (code == EAGAIN || code == EINTR)) return FrameRead::nothing;
  return got == sizeof frame ? FrameRead::frame : FrameRead::end;
}

void admit(const Spawned& box, std::span<const int> tasks) {
  (void)send_frame(box.guest_channel.get(), {Message::cgroups, Step::handshake, 0, 0, 0}, tasks.data(), tasks.size());
}

}  // namespace pctx
