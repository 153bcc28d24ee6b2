#include "launch/fill_plan.h"

#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <climits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "launch/netlink.h"
#include "launch/pick_cpus.h"
#include "launch/spawn.h"
#include "plan/filter_eval.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

extern "C" const char pctx_init_begin[];
extern "C" const char pctx_init_end[];

namespace pctx {
namespace {

// As a shell finds a command, but every candidate is written down before the clone.
std::vector<std::string> candidates(const Command& command, const std::string& path) {
  const std::string& name = command.argv[0];
  if (name.find('/') != std::string::npos) return {name};
  std::vector<std::string> found;
  for (std::string_view directory : sys::split(path, ':')) {
    std::string candidate = sys::join(directory.empty() ? "." : directory, name);
    if (candidate.size() < PATH_MAX) found.push_back(std::move(candidate));  // nothing longer can be there
  }
  if (found.empty()) return {"/" + name};  // the kernel says why; by its name alone it would be one of the workdir
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

// Whether a process behind this filter may still lower its own limits: with a profile of the user's it may not.
bool allows_limits(const std::vector<sock_filter>& filter) {
  seccomp_data call{};
  call.nr = SYS_prlimit64;
  call.arch = audit_arch(kHostArch);
  call.args[1] = RLIMIT_NOFILE;
  call.args[2] = reinterpret_cast<std::uintptr_t>(&call);  // anything but null: a new limit
  return evaluate(filter, call) == kAllow;
}

// "size=1,mode=2" as key, value, key, value.
const char* const* options(std::string_view text, SharedMemory& memory) {
  std::vector<std::string> words;
  for (std::string_view pair : sys::split(text, ',')) {
    const std::size_t equals = pair.find('=');
    words.emplace_back(pair.substr(0, equals));
    words.emplace_back(pair.substr(equals + 1));
  }
  return memory.list(words);
}

Result<Lent> build_ops(const Plan& plan, SharedMemory& memory, ChildPlan& child) {
  std::vector<ChildOp> ops;
  Lent lent;
  ops.reserve(plan.root.size());
  std::map<std::pair<uid_t, gid_t>, std::size_t> mappings;
  for (const RootOp& op : plan.root) {
    ops.push_back({.kind = op.kind,
                   .directory = op.directory,
                   .device = op.device,
                   .inside = op.inside,
                   .mode = op.mode,
                   .size = op.size,
                   .attributes = op.attributes,
                   .target = memory.keep(op.target),
                   .text = memory.keep(op.text),
                   .text_size = op.text.size(),
                   .major = op.major,
                   .minor = op.minor,
                   .options = op.kind == RootOpKind::tmpfs ? options(op.text, memory) : nullptr,
                   .inode = op.lent ? op.lent->inode : 0,
                   .holder = op.lent ? op.lent->device : 0,
                   .tree = -1});
    if (op.idmap) {
      const auto [mapping, is_new] = mappings.try_emplace({op.lent->uid, op.lent->gid}, lent.mappings.size());
      if (is_new)
        lent.mappings.push_back(
            PCTX_TRY(IdMapping::make(op.lent->uid, op.lent->gid, plan.ids.host_uid, plan.ids.host_gid)));
      auto tree = idmapped_tree(*op.lent, lent.mappings[mapping->second].get());
      const bool writable = (op.attributes & abi::kMountRdonly) == 0;
      if (tree) {
        lent.trees.push_back({ops.size() - 1, *std::move(tree)});
      } else if (writable && (op.lent->mode & 02) == 0) {
        return std::move(tree).error();
      }  // lent read-only: what everyone may read can still be read without the mapping
    }
  }
  child.ops = memory.array(ops);
  child.op_count = ops.size();
  return lent;
}

const ChildNetwork* build_network(const NetworkPlan& plan, SharedMemory& memory) {
  const auto batch = [&](const NetlinkMessages& messages) {
    return NetlinkBatch{memory.array(messages.bytes), messages.bytes.size(), messages.last};
  };
  const ChildNetwork network{.local4 = batch(local_routes(plan, false)),
                             .local6 = batch(local_routes(plan, true)),
                             .watched_route = batch(watched_route(plan)),
                             .ports = memory.array(plan.ports),
                             .port_count = plan.ports.size(),
                             .watched = {static_cast<unsigned short>(plan.watched.size()), memory.array(plan.watched)}};
  return memory.array(std::span{&network, 1});
}

}  // namespace

Result<Lent> fill(const Plan& plan, const Command& command, SharedMemory& memory, ChildPlan& child) {
  Lent lent = PCTX_TRY(build_ops(plan, memory, child));
  const auto settings = [&](const std::vector<KernelSetting>& list) {
    std::vector<std::string> words;
    for (const KernelSetting& setting : list) {
      words.push_back("sys/" + setting.path);
      words.push_back(setting.value);
    }
    return memory.list(words);
  };
  std::vector<ChildRule> rules;
  for (const LandlockRule& rule : plan.landlock) rules.push_back({memory.keep(rule.path), rule.access});
  const std::vector<ResourceLimit> rlimits = clamp(plan.rlimits);
  child.root_options = options(plan.root_options, memory);
  child.scratch_options = options(plan.scratch_options, memory);
  child.attach_point = memory.keep(plan.attach_point);
  child.settings = settings(plan.settings);
  child.network_settings = settings(plan.network_settings);
  child.joins_cgroups = plan.cgroup.version == CgroupVersion::v1;
  child.new_network = (plan.namespaces & CLONE_NEWNET) != 0;
  if (plan.network) child.network = build_network(*plan.network, memory);
  child.new_uts = (plan.namespaces & CLONE_NEWUTS) != 0;
  // A name that was asked for is not left out in silence.
  child.uts_optional = plan.policy.allow_degraded.test(index(Layer::uts)) ||
                       (!plan.policy.require.test(index(Layer::uts)) && plan.policy.hostname == Policy{}.hostname);
  child.cgroup_namespace = plan.cgroup_namespace;
  child.cgroup_namespace_optional = !plan.policy.require.test(index(Layer::cgroup_namespace));
  child.uid = plan.ids.inside;
  child.drop_groups = plan.ids.drop_groups;
  child.set_ids = true;
  child.shares_user = (plan.namespaces & CLONE_NEWUSER) == 0;
  child.hostname = memory.keep(plan.policy.hostname);
  child.hostname_size = plan.policy.hostname.size();
  child.init_image = pctx_init_begin;
  child.init_size = static_cast<std::size_t>(pctx_init_end - pctx_init_begin);
  child.terminal = plan.terminal;
  child.folder = plan.folder;
  if (plan.terminal) (void)::ioctl(STDIN_FILENO, TIOCGWINSZ, &child.window);
  // Where there is no /proc nobody can look into the box; with a limit that only a look binds, that is a failure.
  child.send_probes = plan.sends_probes();
  child.workdir = memory.keep(plan.workdir);
  child.pin = plan.pin_cpus != 0;
  child.cpus = child.pin ? pick_cpus(child.allowed, plan.pin_cpus, static_cast<unsigned>(::getpid())) : child.allowed;
  child.rlimits = memory.array(rlimits);
  child.rlimit_count = rlimits.size();
  child.keyring = plan.keyring;
  child.small_pages = plan.watchdog.memory;
  child.profile_at_exec = plan.apparmor_launch.empty();
  if (!child.profile_at_exec) child.launch_profile = memory.keep("changeprofile " + plan.apparmor_launch);
  if (!plan.apparmor.empty())
    child.guest_profile = memory.keep(fmt::format("{} {}",
                                                  plan.apparmor_stack     ? "stack"
                                                  : child.profile_at_exec ? "exec"
                                                                          : "changeprofile",
                                                  plan.apparmor));
  child.landlock_handled = plan.landlock_handled;
  child.landlock_scoped = plan.landlock_scoped;
  // The parent knows the ABI by what the plan asks for: scopes came with 6, and 24 bytes with them.
  child.landlock_size = abi::landlock_ruleset_size(plan.landlock_scoped != 0 ? 6 : 1);
  child.rules = memory.array(rules);
  child.rule_count = rules.size();
  child.filter = {static_cast<unsigned short>(plan.filter.size()), memory.array(plan.filter)};
  child.listener = plan.listener;
  child.files_last = plan.listener && allows_limits(plan.filter);
  child.candidates = memory.list(candidates(command, plan.path));
  child.argv = memory.list(command.argv);
  child.envp = memory.list(plan.env);
  return lent;
}

}  // namespace pctx
