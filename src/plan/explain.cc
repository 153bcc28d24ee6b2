#include <array>

#include <fmt/format.h>

#include "base/printable.h"
#include "plan/network.h"
#include "plan/plan.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

std::string attributes(std::uint64_t bits) {
  std::string text = (bits & abi::kMountRdonly) != 0 ? "ro" : "rw";
  if ((bits & abi::kMountNosuid) != 0) text += ",nosuid";
  if ((bits & abi::kMountNodev) != 0) text += ",nodev";
  if ((bits & abi::kMountNoexec) != 0) text += ",noexec";
  return text;
}

std::string line(const RootOp& op) {
  const std::string target = printable_path("/" + op.target), text = printable_path(op.text);
  switch (op.kind) {
    case RootOpKind::directory:
      return fmt::format("dir      {}", target);
    case RootOpKind::link:
      return fmt::format("link     {} -> {}", target, text);
    case RootOpKind::file:
      return fmt::format("file     {} ({} bytes)", target, std::max<std::uint64_t>(op.size, op.text.size()));
    case RootOpKind::bind:
      return fmt::format("bind     {} ({}){}{}", target, attributes(op.attributes),
                         text == target ? "" : " from " + text, op.idmap ? ", id-mapped" : "");
    case RootOpKind::hold:
      return fmt::format("hold     {} (cannot be moved away)", target);
    case RootOpKind::scratch:
      return fmt::format("scratch  {} ({})", target, attributes(op.attributes));
    case RootOpKind::tmpfs:
      return fmt::format("tmpfs    {} ({}, {})", target, attributes(op.attributes), text);
    case RootOpKind::proc:
      return fmt::format("proc     {} ({})", target, attributes(op.attributes));
    case RootOpKind::devpts:
      return fmt::format("devpts   {}", target);
    case RootOpKind::mask:
      return fmt::format("mask     {}", target);
  }
  return "";
}

struct Right {
  std::uint64_t bits;
  const char* word;
};
constexpr std::array<Right, 10> kRights{{{abi::kLandlockReadFile, "read"},
                                         {abi::kLandlockReadDir, "list"},
                                         {abi::kLandlockExecute, "execute"},
                                         {abi::kLandlockWriteFile, "write"},
                                         {abi::kLandlockTruncate, "truncate"},
                                         {abi::kLandlockMakeDir | abi::kLandlockMakeReg | abi::kLandlockMakeSock |
                                              abi::kLandlockMakeFifo | abi::kLandlockMakeSym,
                                          "make"},
                                         {abi::kLandlockMakeChar | abi::kLandlockMakeBlock, "make devices"},
                                         {abi::kLandlockRemoveDir | abi::kLandlockRemoveFile, "remove"},
                                         {abi::kLandlockRefer, "move"},
                                         {abi::kLandlockIoctlDev, "ioctl"}}};

std::string rights(std::uint64_t bits) {
  std::string text;
  for (const Right& right : kRights)
    if ((bits & right.bits) == right.bits) {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", right.word);
      bits &= ~right.bits;
    }
  // A part of what goes by one word is shown as it is.
  return bits == 0 ? text : fmt::format("{}{}{:#x}", text, text.empty() ? "" : ", ", bits);
}

std::string network_lines(const Plan& plan) {
  const NetworkPolicy& allowed = plan.policy.allowed;
  std::string out = "network (through the relay)\n";
  for (const NetRule& rule : allowed.rules) out += fmt::format("  allow    {}\n", to_string(rule));
  for (const IpPrefix& prefix : allowed.open_private) out += fmt::format("  private  {}\n", prefix.text());
  if (allowed.rate) out += fmt::format("  rate     {}/s in each direction\n", format_size(*allowed.rate));
  if (allowed.bytes) out += fmt::format("  bytes    {} may leave\n", format_size(*allowed.bytes));
  if (allowed.connections) out += fmt::format("  connections {}\n", *allowed.connections);
  for (const IpPrefix& prefix : plan.network->local) out += fmt::format("  local    {}\n", prefix.text());
  if (plan.network->everything_is_local) out += "  local    every other address\n";
  out += fmt::format("  listen   {}\n", fmt::join(plan.network->ports, ", "));
  out += fmt::format("  names    {} (the relay)\n", kNameServer);
  return out;
}

}  // namespace

std::string explain(const Plan& plan) {
  std::string out = "layers\n";
  for (const LayerInfo& entry : kLayers) {
    const LayerState& state = plan.layer(entry.layer);
    out += fmt::format("  {:<18}{:<5}{}\n", entry.name, state.on ? "on" : "off", printable_line(state.detail));
  }
  out += "identity\n";
  out += fmt::format("  uid {} in the box is uid {}, gid {} on the host{}\n", plan.ids.inside, plan.ids.host_uid,
                     plan.ids.host_gid, plan.ids.by_helper ? " (newuidmap)" : "");
  out += "limits\n";
  for (const LimitBinding& limit : plan.bindings)
    out += fmt::format("  {:<18}{} ({})\n", limit.limit, limit.value, limit.by);
  out += fmt::format("root (tmpfs, {})\n", plan.root_options);
  for (const RootOp& op : plan.root)
    if (op.kind != RootOpKind::directory) out += "  " + line(op) + "\n";
  if (plan.network) out += network_lines(plan);
  if (!plan.cgroup_writes.empty()) out += "cgroup\n";
  for (const CgroupWrite& write : plan.cgroup_writes) out += fmt::format("  {} = {}\n", write.file, write.value);
  out += "resource limits\n ";
  for (const ResourceLimit& limit : plan.rlimits) out += fmt::format(" {}={}", limit.name, limit.value);
  out += "\nkernel settings in the box\n";
  for (const auto* list : {&plan.settings, &plan.network_settings})
    for (const KernelSetting& setting : *list) out += fmt::format("  {} = {}\n", setting.path, setting.value);
  if (!plan.landlock.empty()) out += "landlock\n";
  for (const LandlockRule& rule : plan.landlock)
    out += fmt::format("  {} ({})\n", printable_path(rule.path), rights(rule.access));
  out += fmt::format("filter\n  {} instructions, refusals {}\n", plan.filter.size(),
                     plan.listener ? "recorded" : "not recorded");
  out += "environment\n";
  for (const std::string& variable : plan.env) out += fmt::format("  {}\n", printable_path(variable));
  out += fmt::format("workdir\n  {}\n", printable_path(plan.workdir));
  for (const std::string& notice : plan.notices) out += fmt::format("notice\n  {}\n", printable_line(notice));
  return out;
}

}  // namespace pctx
