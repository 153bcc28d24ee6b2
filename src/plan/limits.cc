// Limits always bind: by cgroups where the host lends them, else by the next best mechanism. Which one is written down
// for the Receipt.
#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "plan/plan.h"

namespace pctx {
namespace {

// Descriptors parked in sockets count for their user on the whole host: what a guest with the caller's uid parks, the
// caller cannot send any more once it is more than its own limit, which is 1024 on most hosts.
constexpr std::uint64_t kMostSharedFiles = 512;
constexpr std::uint64_t kAboveCgroup = 8;      // processes: the two do not count quite the same ones
constexpr std::uint64_t kCpuPeriod = 100'000;  // microseconds; the kernel's own default

constexpr const char* kCgroupFix =
    "see 'pctx-sandbox doctor' for how to lend cgroups, or accept it with --allow-degraded cgroups";

std::uint64_t cpu_quota(std::uint32_t thousandths) {
  return std::max<std::uint64_t>(1000, thousandths * kCpuPeriod / 1000);  // the kernel refuses less than 1 ms
}

void v1_writes(Plan& plan, const CgroupHost& host, bool pool) {
  const Limits& limits = plan.policy.limits;
  auto& writes = plan.cgroup_writes;
  writes.push_back({"memory", "memory.limit_in_bytes", std::to_string(limits.memory)});
  if (host.memsw)
    writes.push_back({"memory", "memory.memsw.limit_in_bytes", std::to_string(limits.memory)});
  else
    writes.push_back({"memory", "memory.swappiness", "0", ENOENT});
  // Our init is one of a Worker's. Of a run it is in none.
  writes.push_back({"pids", "pids.max", std::to_string(limits.pids + (pool ? 1 : 0))});
  // Refused where a group above has less, which then binds; v2 takes it and does the same.
  writes.push_back({"cpu", "cpu.cfs_quota_us", std::to_string(cpu_quota(limits.cpus)), EINVAL});
}

void v2_writes(Plan& plan) {
  const Limits& limits = plan.policy.limits;
  auto& writes = plan.cgroup_writes;
  writes.push_back({"memory", "memory.max", std::to_string(limits.memory)});
  writes.push_back({"memory", "memory.swap.max", "0", ENOENT});
  writes.push_back({"memory", "memory.oom.group", "1"});
  // One more for our init.
  writes.push_back({"pids", "pids.max", std::to_string(limits.pids + 1)});
  if (plan.cgroup.cpu_controller)
    writes.push_back({"cpu", "cpu.max", fmt::format("{} {}", cpu_quota(limits.cpus), kCpuPeriod)});
}

// Whole CPUs by affinity, which the filter then keeps; a part of one cannot be had that way.
Result<void> pin_cpus(Plan& plan, const HostFeatures& host, const std::string& why) {
  const std::uint32_t cpus = plan.policy.limits.cpus;
  if (cpus % 1000 != 0 && !plan.policy.allow_degraded.test(index(Layer::cgroups)))
    return unavailable(fmt::format("--cpus {}: a part of a CPU needs the cpu cgroup: {}", format_cpus(cpus), why),
                       fmt::format("give a whole number of CPUs; {}", kCgroupFix));
  const unsigned whole = std::max(1U, (cpus + 999) / 1000);
  if (whole < host.cpus) plan.pin_cpus = whole;
  return {};
}

Result<void> check_files(const Plan& plan, const HostFeatures& host) {
  const std::uint64_t files = plan.policy.limits.files;
  // Who asks for no number has what there is, and the Receipt says how many.
  if (files > host.files && files != Limits{}.files)
    return unavailable(
        fmt::format("--files {}: no process here may open more than {}", files, host.files),
        fmt::format("give {} or fewer, or raise the caller's own limit first: ulimit -Hn {}", host.files, files));
  const LayerState& own_uid = plan.layer(Layer::subordinate_ids);
  if (files <= kMostSharedFiles || own_uid.on || plan.policy.allow_degraded.test(index(Layer::subordinate_ids)))
    return {};
  return unavailable(
      fmt::format("--files {}: more than {} could starve the caller, since {}", files, kMostSharedFiles,
                  own_uid.detail),
      fmt::format("give {} or fewer, or accept it with --allow-degraded subordinate-ids", kMostSharedFiles));
}

// What binds the CPUs where no cgroup does; a part of one only has a whole one.
std::string pinned_by(const Plan& plan, const HostFeatures& host) {
  const std::uint32_t cpus = plan.policy.limits.cpus;
  const unsigned given = plan.pin_cpus != 0 ? plan.pin_cpus : host.cpus;
  if (cpus < given * 1000) return fmt::format("not bound: pinned to {}", given);
  return plan.pin_cpus != 0 ? "pinning" : "the host has no more";
}

Result<void> check_io(const Plan& plan) {
  const Limits& limits = plan.policy.limits;
  if ((!limits.io_read && !limits.io_write) || plan.policy.allow_degraded.test(index(Layer::cgroups))) return {};
  if (plan.cgroup.version == CgroupVersion::v1)
    return unavailable("--io-read and --io-write need cgroup v2: v1 cannot throttle buffered writes",
                       "boot with systemd.unified_cgroup_hierarchy=1, or accept it with --allow-degraded cgroups");
  if (plan.cgroup.version == CgroupVersion::none)
    return unavailable(fmt::format("--io-read and --io-write need cgroup v2: {}", plan.cgroup.why_none), kCgroupFix);
  if (!plan.cgroup.io_controller)
    return unavailable("--io-read and --io-write need the io controller, which is not delegated to this user",
                       kCgroupFix);
  return {};
}

Result<void> without_cgroups(Plan& plan, const HostFeatures& host) {
  plan.watchdog.memory = true;
  // Before 5.14 RLIMIT_NPROC counts every process of the uid on the host, so it cannot mean this box.
  plan.watchdog.pids = !host.kernel_at_least(5, 14);
  return pin_cpus(plan, host, plan.cgroup.why_none);
}

// It counts by the box's own /proc.
Result<void> check_watchdog(const Plan& plan) {
  if (!plan.watchdog.any() || plan.layer(Layer::proc).on) return {};
  return unavailable(fmt::format("--allow-degraded proc: {} bound by a watchdog here, which needs the box's /proc",
                                 plan.watchdog.memory ? "limits are" : "--cpu-time is"),
                     plan.watchdog.memory
                         ? "let the host grant a new /proc, or lend cgroups: 'pctx-sandbox doctor' says how"
                         : "leave --cpu-time out, or let the host grant a new /proc: see 'pctx-sandbox doctor'");
}

void note(Plan& plan, std::string limit, std::string value, std::string by) {
  plan.bindings.push_back({std::move(limit), std::move(value), std::move(by)});
}

// What --allow-degraded lets go stands in the Receipt, and is said before the run.
void say_what_is_not_bound(Plan& plan) {
  std::vector<std::string> loose;
  for (const LimitBinding& each : plan.bindings)
    if (each.by.starts_with("not bound")) loose.push_back(fmt::format("{} {} ({})", each.limit, each.value, each.by));
  if (!loose.empty())
    plan.notices.push_back(fmt::format("limits that --allow-degraded lets go: {}", fmt::join(loose, ", ")));
}

}  // namespace

Result<void> plan_limits(Plan& plan, const HostFeatures& host, bool pool) {
  const Limits& limits = plan.policy.limits;
  plan.cgroup = host.cgroup;
  PCTX_TRY(check_io(plan));
  PCTX_TRY(check_files(plan, host));
  switch (plan.cgroup.version) {
    case CgroupVersion::v1:
      v1_writes(plan, plan.cgroup, pool);
      break;
    case CgroupVersion::v2:
      v2_writes(plan);
      if (!plan.cgroup.cpu_controller) PCTX_TRY(pin_cpus(plan, host, "it is not delegated to this user"));
      break;
    case CgroupVersion::none:
      PCTX_TRY(without_cgroups(plan, host));
      break;
  }
  const bool cgroups = plan.cgroup.version != CgroupVersion::none;
  const std::string by = plan.cgroup.version == CgroupVersion::v2 ? "cgroup v2" : "cgroup v1";
  LayerState& layer = plan.layer(Layer::cgroups);
  layer.on = cgroups;
  layer.detail = cgroups ? by : plan.cgroup.why_none;
  if (!cgroups)
    plan.notices.push_back(
        fmt::format("limits bind without cgroups ({}): memory by a watchdog, processes by {}, CPUs by pinning",
                    plan.cgroup.why_none, plan.watchdog.pids ? "a watchdog" : "an rlimit"));

  if (limits.cpu_time) plan.watchdog.cpu_time = true;
  PCTX_TRY(check_watchdog(plan));

  const std::uint64_t files = std::min<std::uint64_t>(limits.files, host.files);
  plan.rlimits = {
      {RLIMIT_CORE, 1,
       "core"},  // not 0: with that a kernel whose core_pattern is a program still runs it, outside the box
      {RLIMIT_NOFILE, files, "nofile"},
      {RLIMIT_FSIZE, limits.disk, "fsize"},
      {RLIMIT_MEMLOCK, 64_KiB, "memlock"},
      {RLIMIT_MSGQUEUE, 256_KiB, "msgqueue"},
      {RLIMIT_SIGPENDING, 1024, "sigpending"},
      {RLIMIT_NICE, 0, "nice"},
      {RLIMIT_RTPRIO, 0, "rtprio"},
      {RLIMIT_STACK, 8_MiB, "stack"},
  };
  // Where there is a cgroup, it is the one to refuse, since it counts how often.
  const std::uint64_t most = limits.pids + (cgroups ? kAboveCgroup : 1);
  if (host.kernel_at_least(5, 14)) plan.rlimits.push_back({RLIMIT_NPROC, most, "nproc"});
  if (limits.cpu_time)
    plan.rlimits.push_back({RLIMIT_CPU, static_cast<rlim_t>((limits.cpu_time->count() + 1999) / 1000), "cpu"});

  note(plan, "memory", format_size(limits.memory), cgroups ? by : "watchdog");
  note(plan, "cpus", format_cpus(limits.cpus), cgroups && plan.cgroup.cpu_controller ? by : pinned_by(plan, host));
  note(plan, "pids", std::to_string(limits.pids), cgroups ? by : plan.watchdog.pids ? "watchdog" : "rlimit");
  note(plan, "timeout", limits.timeout.count() > 0 ? format_duration(limits.timeout) : "none", "supervisor");
  if (limits.cpu_time) note(plan, "cpu_time", format_duration(*limits.cpu_time), "watchdog and rlimit");
  note(plan, "disk", format_size(limits.disk), "tmpfs");
  note(plan, "inodes", std::to_string(limits.inodes), "tmpfs");
  note(plan, "output", format_size(limits.output), "supervisor");
  note(plan, "files", std::to_string(files), "rlimit");
  for (const auto& [name, rate] : {std::pair{"io_read", limits.io_read}, {"io_write", limits.io_write}})
    if (rate)
      note(plan, name, format_size(*rate) + "/s",
           plan.cgroup.version == CgroupVersion::v2 && plan.cgroup.io_controller ? by : "not bound");
  say_what_is_not_bound(plan);
  const NetworkPolicy& allowed = plan.policy.allowed;
  if (allowed.rate) note(plan, "net_rate", format_size(*allowed.rate) + "/s", "relay");
  if (allowed.bytes) note(plan, "net_bytes", format_size(*allowed.bytes), "relay");
  if (allowed.connections) note(plan, "net_connections", std::to_string(*allowed.connections), "relay");
  return {};
}

}  // namespace pctx
