#include <sched.h>

#include <fmt/format.h>

#include "plan/plan.h"

namespace pctx {
namespace {

struct NamespaceFlag {
  Layer layer;
  std::uint64_t flag;
};
constexpr std::array<NamespaceFlag, 6> kNamespaces{{{Layer::user, CLONE_NEWUSER},
                                                    {Layer::pid, CLONE_NEWPID},
                                                    {Layer::mount, CLONE_NEWNS},
                                                    {Layer::network, CLONE_NEWNET},
                                                    {Layer::ipc, CLONE_NEWIPC},
                                                    {Layer::uts, CLONE_NEWUTS}}};

// The kernel-wide uid range that belongs to no account; boxes that live at the same time get different ones, so that
// the per-uid quotas of one (keys, descriptors on their way through sockets) are not another's.
std::uint32_t free_id(const HostFeatures& host, std::uint32_t instance) {
  return host.first_free_id + instance % (host.first_free_id >= 0x70000000 ? 0x400000U : 1000U);
}

bool others_may_read(const LentPath& lent) {
  const unsigned needed = lent.directory ? 05 : 04;
  return (lent.mode & needed) == needed;
}

// What is lent needs the caller's own uid, without root's way of showing files as another's.
std::string why_caller(const Plan& plan, const CompileInputs& inputs) {
  if (inputs.mnt || inputs.folder) return "what it writes to the folder lent with --mnt is to be the caller's";
  for (std::size_t i = 0; i < inputs.binds.size(); ++i) {
    if (plan.policy.binds[i].writable)
      return fmt::format("what it writes to {}, lent with --rw, is to be the caller's", inputs.binds[i].path);
    if (!others_may_read(inputs.binds[i]))
      return fmt::format("{} is lent, and not for all to read", inputs.binds[i].path);
  }
  return "";
}

void plan_ids(Plan& plan, const HostFeatures& host, const CompileInputs& inputs) {
  IdMap& ids = plan.ids;
  ids.inside = plan.policy.uid;
  LayerState& layer = plan.layer(Layer::subordinate_ids);
  if (host.privileged) {
    ids.host_uid = ids.host_gid = free_id(host, inputs.instance);
    ids.drop_groups = true;
    if (inputs.missing.test(index(Layer::user))) ids.inside = ids.host_uid;  // no map: ids are what they are
    layer = {true, fmt::format("host uid {}", ids.host_uid)};
    return;
  }
  std::string why, hint;
  if (!host.subuid || !host.subgid)
    why = "no subordinate ids for this user in /etc/subuid and /etc/subgid";
  else if (!host.id_helpers)
    why = "newuidmap and newgidmap are not installed";
  else if (!host.no_set_id.empty())
    why = fmt::format("{}, so that newuidmap and newgidmap gain no rights", host.no_set_id);
  if (why.empty() && !(why = why_caller(plan, inputs)).empty())
    hint = "lend with --ro what everybody may read, or start it as root, who can have both";
  if (why.empty()) {
    ids.host_uid = host.subuid->start + inputs.instance % host.subuid->count;
    ids.host_gid = host.subgid->start + inputs.instance % host.subgid->count;
    ids.by_helper = ids.drop_groups = true;
    layer = {true, fmt::format("host uid {}", ids.host_uid)};
    return;
  }
  ids.host_uid = host.uid;
  ids.host_gid = host.gid;
  layer = host.own_uid.empty() ? LayerState{false, "the guest has the caller's uid: " + why, hint}
                               : LayerState{true, fmt::format("host uid {}, the container's own", host.own_uid)};
}

void plan_namespaces(Plan& plan, const CompileInputs& inputs) {
  for (const NamespaceFlag& entry : kNamespaces) {
    if (entry.layer == Layer::network && plan.policy.network == Network::host) {
      plan.layer(entry.layer) = {false, "--network host: the guest is on the host's network"};
      plan.notices.push_back(
          "WARNING: --network host: the guest reaches everything that this machine reaches, its own "
          "services on localhost included");
      continue;
    }
    if (inputs.missing.test(index(entry.layer))) {
      const bool accepted = plan.policy.allow_degraded.test(index(entry.layer));
      plan.layer(entry.layer) = {
          false, accepted ? "this host refuses it; accepted by --allow-degraded" : "this host refuses it"};
      plan.notices.push_back(fmt::format("WARNING: the box has no {} namespace of its own", info(entry.layer).name));
      continue;
    }
    plan.namespaces |= entry.flag;
    plan.layer(entry.layer) = {true, "new"};
  }
  plan.cgroup_namespace = !inputs.missing.test(index(Layer::cgroup_namespace));
  plan.layer(Layer::cgroup_namespace) = {plan.cgroup_namespace, plan.cgroup_namespace ? "new" : "this host refuses it"};
  plan.layer(Layer::proc) = inputs.missing.test(index(Layer::proc))
                                ? LayerState{false, "this host refuses a new /proc; the box has none"}
                                : LayerState{true, "own, read-only, masked"};
  plan.layer(Layer::capabilities) = {true, "all sets empty, securebits locked"};
  plan.layer(Layer::no_new_privs) = {true, "set"};
}

void plan_environment(Plan& plan, const HostFeatures& host) {
  const Policy& policy = plan.policy;
  plan.path = kDefaultPath;
  std::vector<std::pair<std::string, std::string>> vars{
      {"PATH", plan.path},
      {"HOME", plan.home},
      {"USER", policy.uid == 0 ? "root" : "sandbox"},
      {"LANG", "C.UTF-8"},
      {"TMPDIR", "/tmp"},
      {"XDG_CACHE_HOME", fmt::format("{}/{}", plan.home, kCacheFolder)},
      {"SHELL", "/bin/sh"},
      {"LOGNAME", policy.uid == 0 ? "root" : "sandbox"},
  };
  if (!host.timezone.empty()) vars.emplace_back("TZ", host.timezone);
  if (plan.terminal) vars.emplace_back("TERM", "xterm-256color");
  for (const auto& [name, value] : policy.env) {
    if (name == "PATH") plan.path = value;
    std::erase_if(vars, [&key = name](const auto& var) { return var.first == key; });
    vars.emplace_back(name, value);
  }
  for (const auto& [name, value] : vars) plan.env.push_back(name + "=" + value);
  plan.workdir = !policy.workdir.empty() ? policy.workdir : policy.mnt ? "/mnt" : plan.home;
}

// What a socket that is in no list may hold (socket_memory.cc counts with as much), and all options of one. Groups:
// when a socket with memberships is closed, the kernel walks those of the whole box for each, with the lock that all
// network namespaces of the host share; with 20 for each socket, as elsewhere, a box outlived its time limit by many
// seconds.
void plan_network_settings(Plan& plan) {
  if ((plan.namespaces & CLONE_NEWNET) == 0) return;
  plan.network_settings = {{"net/ipv4/tcp_rmem", fmt::format("4096 131072 {}", plan.most_received())},
                           {"net/core/optmem_max", "20480"},
                           {"net/ipv4/igmp_max_memberships", "1"}};
}

// What a guest that shares a uid with others could use up for them, bounded per user namespace. Without one of its own
// these would be the host's settings.
void plan_settings(Plan& plan) {
  plan_network_settings(plan);
  if ((plan.namespaces & CLONE_NEWUSER) == 0) return;
  // The queue of one instance holds 8 MiB of events, which a memory cgroup counts and nobody else.
  // Instances count for whoever made the namespace, our caller, as well, who has 128 by default for everything.
  constexpr std::uint64_t kMostInstances = 8, kShareOfInstance = 64_MiB;
  const std::uint64_t instances =
      plan.watchdog.memory ? std::clamp<std::uint64_t>(plan.policy.limits.memory / kShareOfInstance, 1, kMostInstances)
                           : kMostInstances;
  plan.settings = {{"user/max_user_namespaces", "0"},
                   {"user/max_inotify_instances", std::to_string(instances)},
                   {"user/max_inotify_watches", "16384"}};
}

// A box without these is none: the code that builds and ends it stands on them.
constexpr std::array kNeverLeftOut{Layer::pid, Layer::mount, Layer::capabilities, Layer::no_new_privs};

Result<void> check_degradable(const HostFeatures& host, const CompileInputs& inputs) {
  for (Layer layer : kNeverLeftOut)
    if (inputs.missing.test(index(layer)))
      return unavailable(fmt::format("the layer '{}' is missing on this host and cannot be left out", info(layer).name),
                         "see 'pctx-sandbox doctor' for the fix");
  if (inputs.missing.test(index(Layer::user)) && !host.privileged)
    return unavailable("without user namespaces only root can make a box", "see 'pctx-sandbox doctor' for the fix");
  return {};
}

Result<void> check_layers(const Plan& plan) {
  for (const LayerInfo& entry : kLayers) {
    const LayerState& state = plan.layer(entry.layer);
    if (state.on) continue;
    const bool asked = plan.policy.require.test(index(entry.layer));
    const bool degraded = plan.policy.allow_degraded.test(index(entry.layer));
    const bool meant = entry.layer == Layer::network && plan.policy.network == Network::host;
    // A name that was asked for is not left out in silence.
    if (entry.layer == Layer::uts && !asked && !degraded && plan.policy.hostname != Policy{}.hostname)
      return unavailable(fmt::format("{} {}: the box has no uts namespace: {}",
                                     plan.policy.names.of("identity.hostname"), plan.policy.hostname, state.detail),
                         "leave it out; 'pctx-sandbox doctor' says what this host lacks for it");
    if (asked && meant)
      return usage_error(fmt::format("--require {}: {}", entry.name, state.detail), "leave one of the two out");
    if (asked)
      return unavailable(fmt::format("--require {}: {}", entry.name, state.detail),
                         state.hint.empty() ? "'pctx-sandbox doctor' says what this host lacks for it" : state.hint);
    if (entry.required && !degraded && !meant)
      return unavailable(fmt::format("the layer '{}' is required: {}", entry.name, state.detail),
                         fmt::format("see 'pctx-sandbox doctor', or accept it with --allow-degraded {}", entry.name));
  }
  return {};
}

}  // namespace

std::uint64_t wanted_namespaces(const Policy& policy) {
  std::uint64_t flags = 0;
  for (const NamespaceFlag& entry : kNamespaces)
    if (entry.layer != Layer::network || policy.network != Network::host) flags |= entry.flag;
  return flags;
}

Result<Plan> compile(const Policy& policy, const HostFeatures& host, const CompileInputs& inputs) {
  PCTX_TRY(validate(policy));
  PCTX_TRY(check_degradable(host, inputs));
  Plan plan;
  plan.policy = policy;
  plan.terminal = inputs.terminal;
  plan.folder = inputs.folder;
  plan.map_folder = host.privileged;
  plan_namespaces(plan, inputs);
  PCTX_TRY(plan_network(plan));
  plan_ids(plan, host, inputs);
  PCTX_TRY(plan_root(plan, host, inputs));
  PCTX_TRY(plan_limits(plan, host, inputs.pool));
  plan_landlock(plan, host, inputs);
  PCTX_TRY(plan_filter(plan, host, inputs));
  plan_environment(plan, host);
  plan_settings(plan);
  PCTX_TRY(plan_apparmor(plan, host, inputs));
  PCTX_TRY(check_layers(plan));
  return plan;
}

}  // namespace pctx
