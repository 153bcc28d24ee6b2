// The layers a box is made of. Each is required, or used whenever the host has it; the Receipt names every one of them
// for every run.
#pragma once

#include <array>
#include <bitset>
#include <optional>
#include <string_view>

namespace pctx {

enum class Layer {
  user,
  pid,
  mount,
  network,
  ipc,
  uts,
  cgroup_namespace,
  proc,
  capabilities,
  no_new_privs,
  seccomp,
  landlock,
  subordinate_ids,
  cgroups,
  apparmor,
};

struct LayerInfo {
  Layer layer;
  std::string_view name;   // on the command line, in policies and receipts
  std::string_view means;  // for people
  bool required;           // without it the run is refused, unless --allow-degraded names it
};

inline constexpr std::array<LayerInfo, 15> kLayers{{
    {Layer::user, "user", "user namespace: root in the box is nobody on the host", true},
    {Layer::pid, "pid", "pid namespace: no host process is visible", true},
    {Layer::mount, "mount", "mount namespace: an own root, the host's tree is detached", true},
    {Layer::network, "network", "network namespace: no interface but an own loopback", true},
    {Layer::ipc, "ipc", "ipc namespace: no shared memory, semaphores or queues with the host", true},
    {Layer::uts, "uts", "uts namespace: an own host name", false},
    {Layer::cgroup_namespace, "cgroup-namespace", "cgroup namespace: the host's cgroup tree is hidden", false},
    {Layer::proc, "proc", "an own /proc with its dangerous parts masked", true},
    {Layer::capabilities, "capabilities", "all capability sets empty, securebits locked", true},
    {Layer::no_new_privs, "no-new-privs", "set-id programs give nothing", true},
    {Layer::seccomp, "seccomp", "system call allow-list", true},
    {Layer::landlock, "landlock", "Landlock rules on top of the mounts", false},
    {Layer::subordinate_ids, "subordinate-ids", "a host uid that is neither root's nor the caller's", false},
    {Layer::cgroups, "cgroups", "limits bound by cgroups", false},
    {Layer::apparmor, "apparmor", "AppArmor profile on the guest", false},
}};

using LayerSet = std::bitset<kLayers.size()>;

constexpr std::size_t index(Layer layer) { return static_cast<std::size_t>(layer); }
constexpr const LayerInfo& info(Layer layer) { return kLayers[index(layer)]; }

constexpr std::optional<Layer> layer_named(std::string_view name) {
  for (const LayerInfo& entry : kLayers)
    if (entry.name == name) return entry.layer;
  return std::nullopt;
}

}  // namespace pctx
