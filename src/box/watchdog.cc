#include "box/watchdog.h"

#include <fcntl.h>
#include <sys/vfs.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "box/proc_tree.h"

namespace pctx {
namespace {

// In one look, and so many looks in a row in which somebody was missed in each round: a box of ordinary programs that
// come and go has rounds in which nobody does.
constexpr int kRounds = 16, kBlindLooks = 4;

}  // namespace

std::uint64_t resident_memory(pid_t pid) {
  const Fd proc{::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  const Holder holder = memory_holder(proc.get(), std::to_string(pid));
  return holder.hidden ? UINT64_MAX : holder.resident.own + holder.resident.shared;
}

Millis waited_for(pid_t pid) {
  const Fd proc{::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  return ticks_to_time(cpu_ticks(proc.get(), std::to_string(pid)).children);
}

std::uint64_t TreeMeter::stored() const {
  std::uint64_t sum = 0;
  for (const Fd& store : stores_)
    if (struct statfs space{}; ::fstatfs(store.get(), &space) == 0)
      sum += (space.f_blocks - space.f_bfree) * static_cast<std::uint64_t>(space.f_bsize);
  return sum;
}

void TreeMeter::measure_rest() {
  if (highest_) highest_->memory = std::max(highest_->memory, stored());
}

std::size_t TreeMeter::processes() const {
  const std::vector<std::string> all = numbered(proc_.get(), ".");
  return all.size() - static_cast<std::size_t>(std::count(all.begin(), all.end(), "1"));
}

void TreeMeter::note(const Look& look) {
  in_kernel_ = look.in_kernel;
  parked_ = look.parked;
  if (look.exact) exact_ = look.resident;
}

std::uint64_t TreeMeter::total(const Resident& processes, std::uint64_t stored, std::uint64_t granted) const {
  return stored + processes.own + std::max({processes.shared, parked_, granted}) + in_kernel_;
}

TreeUsage TreeMeter::measure(std::uint64_t memory_limit) {
  TreeUsage usage;
  const std::uint64_t stored = this->stored();
  struct Seen {
    Resident resident;
    std::uint64_t threads;
  };
  std::map<std::string, Seen> seen;
  bool hidden = false;

  std::uint64_t own = 0, with_children = 0;
  std::map<std::string, std::uint64_t> living;
  RollCall roll{proc_.get(), kRounds};
  while (roll.call())
    for (const std::string& pid : roll.newcomers()) {
      const Holder holder = memory_holder(proc_.get(), pid);
      hidden |= holder.hidden;
      if (holder.path.empty()) roll.missed();
      seen[pid] = {holder.resident, holder.threads};
      const CpuTicks ticks = cpu_ticks(proc_.get(), pid);
      own += ticks.own;
      with_children += ticks.own + ticks.children;
      living[pid + " " + ticks.start] = ticks.own;
    }
  if (seen.empty()) return usage;
  blind_ = roll.blind() ? blind_ + 1 : 0;
  hidden |= blind_ >= kBlindLooks;
  Resident sum, largest;
  for (const auto& [pid, process] : seen) {
    if (!roll.is_here(pid)) continue;
    sum.own += process.resident.own;
    sum.shared += process.resident.shared;
    largest.own = std::max(largest.own, process.resident.own);
    largest.shared = std::max(largest.shared, process.resident.shared);
    if (pid != "1") usage.processes += process.threads;
  }
  for (const auto& [who, ticks] : living_ticks_)
    if (!living.contains(who)) dead_ticks_ += ticks;
  living_ticks_ = std::move(living);
  // A child that nobody waits for (SIGCHLD ignored) is in nobody's sum: then what we saw of it counts.
  usage.cpu = ticks_to_time(std::max(own + dead_ticks_, with_children));

  if (!highest_) highest_.emplace();
  largest_ = largest.own;
  largest.own -= std::min(largest.own, inherited_);
  highest_->memory = std::max(highest_->memory, total(largest, stored, 0));
  usage.memory = total(sum, stored, shared_);
  judge(memory_limit, stored, total(largest, stored, shared_), usage);
  // What takes care not to be seen counts as too much.
  if (hidden) usage.memory = std::max(usage.memory, memory_limit + 1);
  last_memory_ = usage.memory;
  highest_->cpu = std::max(highest_->cpu, usage.cpu);
  highest_->processes = std::max(highest_->processes, usage.processes);
  return usage;
}

// Of `usage.memory`, which may have pages of forks twice, makes what is known; `sure` has these once.
void TreeMeter::judge(std::uint64_t memory_limit, std::uint64_t stored, std::uint64_t sure, TreeUsage& usage) {
  least_stored_ = std::min(least_stored_, stored);
  least_shared_ = std::min(least_shared_, shared_);
  const bool told = exact_.has_value();
  if (told) {
    judged_ = total(*exact_, least_stored_, least_shared_);
    highest_->memory = std::max(highest_->memory, total(*exact_, least_stored_, 0));
    exact_.reset();
    least_stored_ = stored;
    least_shared_ = shared_;
  }
  doubtful_ = false;
  if (usage.memory <= memory_limit) return;
  usage.memory = std::max(sure, told ? judged_ : std::min(judged_, memory_limit));
  doubtful_ = usage.memory <= memory_limit;
}

bool over_limits(const Plan& plan, TreeMeter& meter, const BoxCgroup& cgroup, Verdict& verdict) {
  if (!plan.watchdog.any() || !meter) return false;
  const Limits& limits = plan.policy.limits;
  const TreeUsage tree = meter.measure(limits.memory);
  bool over = false;
  if (plan.watchdog.memory && tree.memory > limits.memory) verdict.memory_over = over = true;
  if (plan.watchdog.pids && tree.processes > limits.pids) verdict.pids_over = over = true;
  Millis cpu = tree.cpu;
  if (const auto counted = cgroup.usage().cpu_microseconds) cpu = Millis{static_cast<Millis::rep>(*counted / 1000)};
  if (limits.cpu_time && cpu >= *limits.cpu_time) verdict.cpu_time_over = over = true;
  return over;
}

}  // namespace pctx
