#include "box/watchdog.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "box/socket_memory.h"
#include "sys/files.h"

namespace pctx {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMapping = 256;  // what the kernel has for one mapping: 238 bytes were seen on 6.18
constexpr unsigned kCloseLookEvery = 4;  // reading every mapping and socket is dearer than the rest together
constexpr int kExactShare = 20;          // an exact look for the sake of a new highest takes 1/20 of our time at most

// "Name:   123 kB" in bytes.
std::uint64_t kilobytes(const std::string& text, const char* name) {
  const std::size_t at = text.find(name);
  if (at == std::string::npos) return 0;
  return std::strtoull(text.c_str() + at + std::strlen(name), nullptr, 10) * 1024;
}

// The entries of a folder of /proc that are processes or threads.
std::vector<std::string> numbered(int proc, const std::string& folder) {
  std::vector<std::string> names;
  const int listing = ::openat(proc, folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = listing >= 0 ? ::fdopendir(listing) : nullptr;
  if (entries == nullptr) return names;
  while (const dirent* entry = ::readdir(entries))
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') names.emplace_back(entry->d_name);
  ::closedir(entries);
  return names;
}

struct Resident {
  std::uint64_t own = 0;     // anonymous, swapped out included, and page tables
  std::uint64_t shared = 0;  // tmpfs and shared anonymous
};

// nullopt: it has no memory, or not any more.
std::optional<Resident> resident(int proc, const std::string& pid) {
  const auto status = sys::try_read_file(pid + "/status", 16384, proc);
  if (!status || status->find("VmRSS:") == std::string::npos) return std::nullopt;
  return Resident{kilobytes(*status, "RssAnon:") + kilobytes(*status, "VmSwap:") + kilobytes(*status, "VmPTE:"),
                  kilobytes(*status, "RssShmem:")};
}

// Pages shared by several processes are split between them. A guest that closes itself to inspection is counted in
// full.
Resident proportional(int proc, const std::string& pid) {
  const auto rollup = sys::try_read_file(pid + "/smaps_rollup", 16384, proc);
  if (!rollup || rollup->empty()) return resident(proc, pid).value_or(Resident{});
  const auto status = sys::try_read_file(pid + "/status", 16384, proc);
  return {
      kilobytes(*rollup, "Pss_Anon:") + kilobytes(*rollup, "SwapPss:") + (status ? kilobytes(*status, "VmPTE:") : 0),
      kilobytes(*rollup, "Pss_Shmem:")};
}

// Shared anonymous memory stays allocated when its pages are given up with madvise(), though nobody's resident set
// shows it: such mappings count with their full size, once per object. The result is what the kernel has for the
// mappings themselves, of which a process may have 65,530.
std::uint64_t look_at_mappings(int proc, const std::string& pid, std::map<std::string, std::uint64_t>& objects) {
  const auto maps = sys::try_read_file(pid + "/maps", 4_MiB, proc);
  if (!maps) return 0;
  for (std::string_view line : sys::split(*maps, '\n')) {
    if (!line.ends_with("/dev/zero (deleted)") && line.find("/SYSV") == std::string_view::npos) continue;
    unsigned long long from = 0, to = 0, offset = 0, inode = 0;
    char mode[8] = {}, device[16] = {};
    if (std::sscanf(std::string{line}.c_str(), "%llx-%llx %7s %llx %15s %llu", &from, &to, mode, &offset, device,
                    &inode) != 6)
      continue;
    std::uint64_t& size = objects[fmt::format("{} {}", device, inode)];
    size = std::max<std::uint64_t>(size, offset + (to - from));
  }
  return static_cast<std::uint64_t>(std::count(maps->begin(), maps->end(), '\n')) * kMapping;
}

// Who speaks for a process's memory: where its first thread has ended, /proc shows none there, though the others have
// all of it.
struct Holder {
  std::string path;  // empty: nobody has any
  Resident resident;
  bool hidden = false;  // new threads came as fast as we looked, and each was gone before it could be read
};

Holder memory_holder(int proc, const std::string& pid) {
  constexpr int kTries = 64;
  if (const auto own = resident(proc, pid)) return {pid, *own};
  std::set<std::string> seen;
  for (int i = 0; i < kTries; ++i) {
    bool new_one = false;
    for (const std::string& thread : numbered(proc, pid + "/task")) {
      new_one |= seen.insert(thread).second;
      const std::string path = pid + "/task/" + thread;
      if (const auto shared = resident(proc, path)) return {path, *shared};
    }
    if (!new_one) return {};  // it is about to end
  }
  return {.hidden = true};
}

struct CpuTicks {
  std::string start;           // when the process started: with the pid, who it is
  std::uint64_t own = 0;       // fields 14 and 15 of /proc/N/stat
  std::uint64_t children = 0;  // 16 and 17: of those it waited for
};

// The name, field 2, may hold anything but ends with the last parenthesis.
CpuTicks cpu_ticks(int proc, const std::string& pid) {
  CpuTicks ticks;
  const auto stat = sys::try_read_file(pid + "/stat", 4096, proc);
  const std::size_t name_end = stat ? stat->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return ticks;
  int field = 2;
  for (std::string_view word : sys::split(std::string_view{*stat}.substr(name_end + 1), ' ')) {
    if (word.empty()) continue;
    ++field;
    if (field == 14 || field == 15) ticks.own += std::strtoull(std::string{word}.c_str(), nullptr, 10);
    if (field == 16 || field == 17) ticks.children += std::strtoull(std::string{word}.c_str(), nullptr, 10);
    if (field == 22) ticks.start = word;
  }
  return ticks;
}

Millis duration(std::uint64_t ticks) {
  return Millis{static_cast<Millis::rep>(ticks * 1000 / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK)))};
}

std::uint64_t threads(int proc, const std::string& pid) {
  const auto status = sys::try_read_file(pid + "/status", 16384, proc);
  const std::size_t at = status ? status->find("Threads:") : std::string::npos;
  return at == std::string::npos ? 1 : std::strtoull(status->c_str() + at + 8, nullptr, 10);
}

}  // namespace

std::uint64_t resident_memory(pid_t pid) {
  const Fd proc{::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  const Holder holder = memory_holder(proc.get(), std::to_string(pid));
  return holder.hidden ? UINT64_MAX : holder.resident.own + holder.resident.shared;
}

Millis waited_for(pid_t pid) {
  const Fd proc{::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  return duration(cpu_ticks(proc.get(), std::to_string(pid)).children);
}

std::uint64_t TreeMeter::stored() const {
  struct statfs space {};
  if (::fstatfs(scratch_.get(), &space) != 0) return 0;
  return (space.f_blocks - space.f_bfree) * static_cast<std::uint64_t>(space.f_bsize);
}

void TreeMeter::measure_rest() {
  if (highest_) highest_->memory = std::max(highest_->memory, stored());
}

std::size_t TreeMeter::processes() const {
  const std::vector<std::string> all = numbered(proc_.get(), ".");
  return all.size() - static_cast<std::size_t>(std::count(all.begin(), all.end(), "1"));
}

TreeUsage TreeMeter::measure(std::uint64_t memory_limit) {
  TreeUsage usage;
  const std::uint64_t stored = this->stored();
  const std::vector<std::string> pids = numbered(proc_.get(), ".");
  if (pids.empty()) return usage;
  std::vector<std::string> holders;
  bool hidden = false;

  Resident sum;
  const auto add = [](Resident& to, const Resident& one) {
    to.own += one.own;
    to.shared += one.shared;
  };
  std::uint64_t own = 0, with_children = 0;
  std::map<std::string, std::uint64_t> living;
  for (const std::string& pid : pids) {
    Holder holder = memory_holder(proc_.get(), pid);
    hidden |= holder.hidden;
    add(sum, holder.resident);
    if (!holder.path.empty()) holders.push_back(std::move(holder.path));
    const CpuTicks ticks = cpu_ticks(proc_.get(), pid);
    own += ticks.own;
    with_children += ticks.own + ticks.children;
    living[pid + " " + ticks.start] = ticks.own;
    if (pid != "1") usage.processes += threads(proc_.get(), pid);
  }
  for (const auto& [who, ticks] : living_ticks_)
    if (!living.contains(who)) dead_ticks_ += ticks;
  living_ticks_ = std::move(living);
  // A child that nobody waits for (SIGCHLD ignored) is in nobody's sum: then what we saw of it counts.
  usage.cpu = duration(std::max(own + dead_ticks_, with_children));

  if (looks_++ % kCloseLookEvery == 0) {
    std::map<std::string, std::uint64_t> objects;
    in_kernel_ = sockets_.measure(proc_.get(), memory_limit);
    for (const std::string& holder : holders) in_kernel_ += look_at_mappings(proc_.get(), holder, objects);
    parked_ = 0;
    for (const auto& [object, size] : objects) parked_ += size;
  }
  const auto total = [&](const Resident& of, std::uint64_t granted) {
    return stored + of.own + std::max({of.shared, parked_, granted}) + in_kernel_;
  };
  const auto shares = [&] {
    Resident exact;
    for (const std::string& holder : holders) add(exact, proportional(proc_.get(), holder));
    return exact;
  };
  if (!highest_) highest_.emplace();
  usage.memory = total(sum, shared_);
  const auto now = Clock::now();
  if (usage.memory > memory_limit) {
    const Resident exact = shares();
    usage.memory = total(exact, shared_);
    highest_->memory = std::max(highest_->memory, total(exact, 0));
  } else if (usage.memory > highest_->memory && now >= next_exact_) {
    highest_->memory = std::max(highest_->memory, total(shares(), 0));
    const auto taken = Clock::now();
    next_exact_ = taken + kExactShare * (taken - now);
  }
  // What takes care not to be seen counts as too much.
  if (hidden) usage.memory = std::max(usage.memory, memory_limit + 1);
  last_memory_ = usage.memory;
  highest_->cpu = std::max(highest_->cpu, usage.cpu);
  highest_->processes = std::max(highest_->processes, usage.processes);
  return usage;
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
