#include "box/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx {
namespace {

constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

Fd open_directory(const std::string& path) { return Fd{::open(path.c_str(), kDirectory)}; }

// The value after `key` in a flat keyed file ("oom_kill 1\n").
std::uint64_t keyed(const std::string& text, std::string_view key) {
  for (std::string_view line : sys::split(text, '\n')) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ' ') continue;
    std::uint64_t value = 0;
    std::from_chars(line.data() + key.size() + 1, line.data() + line.size(), value);
    return value;
  }
  return 0;
}

std::optional<std::uint64_t> number(int directory, const char* file) {
  const auto text = sys::try_read_file(file, 256, directory);
  if (!text) return std::nullopt;
  std::uint64_t value = 0;
  if (std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc{}) return std::nullopt;
  return value;
}

void kill_members(int directory) {
  // v2 has one file for it (5.14); else every member, again and again until none is left or none can be.
  if (sys::write_at(directory, "cgroup.kill", "1")) return;
  const auto members = sys::try_read_file("cgroup.procs", 1_MiB, directory);
  if (!members) return;
  for (std::string_view line : sys::split(*members, '\n')) {
    pid_t pid = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), pid).ec == std::errc{} && pid > 1) ::kill(pid, SIGKILL);
  }
}

// The kernel keeps a cgroup busy for a moment after its last process was reaped.
bool remove_directory(int parent, const std::string& name, int directory) {
  for (int attempt = 0; attempt < 400; ++attempt) {
    if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return true;
    if (errno != EBUSY) return false;
    if (directory >= 0) kill_members(directory);
    const timespec pause{0, attempt < 20 ? 200'000 : 5'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return false;
}

struct Hierarchy {
  std::string controller, parent;
};

bool same_directory(const std::string& a, const std::string& b) {
  struct stat first {
  }, second{};
  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// The memory hierarchy comes first: it is made first and removed last, so a leftover anywhere shows there.
std::vector<Hierarchy> hierarchies(const CgroupHost& host, bool cpu_accounting) {
  if (host.version == CgroupVersion::v2) return {{"", host.unified}};
  if (host.version == CgroupVersion::none) return {};
  std::vector<Hierarchy> list{{"memory", host.memory}, {"pids", host.pids}, {"cpu", host.cpu}};
  // Often mounted together with cpu; then it is the same directory.
  if (cpu_accounting && !host.cpuacct.empty() && !same_directory(host.cpuacct, host.cpu))
    list.push_back({"cpuacct", host.cpuacct});
  return list;
}

// v2: controllers must be switched on in the parent. Alone in a delegated scope we first step into a leaf of it, since
// a cgroup with processes of its own may not have controlled children.
Result<void> prepare_unified(const CgroupHost& host, int parent) {
  if (host.own_scope) {
    if (::mkdirat(parent, kOwnLeaf, 0755) != 0 && errno != EEXIST) return os_error("cannot make a leaf cgroup");
    const Fd leaf{::openat(parent, kOwnLeaf, kDirectory)};
    const std::string processes = sys::try_read_file("cgroup.procs", 65536, parent).value_or("0\n");
    for (std::string_view pid : sys::split(processes, '\n'))
      if (auto moved = sys::write_at(leaf.get(), "cgroup.procs", pid); !moved && moved.error().code != ESRCH)
        return moved;
  }
  const std::string enabled = sys::try_read_file("cgroup.subtree_control", 4096, parent).value_or("");
  const std::string available = sys::try_read_file("cgroup.controllers", 4096, parent).value_or("");
  for (std::string_view controller : {"memory", "pids", "cpu", "io"}) {
    if (sys::has_word(enabled, controller) || !sys::has_word(available, controller)) continue;
    auto written = sys::write_at(parent, "cgroup.subtree_control", fmt::format("+{}", controller));
    if (!written && controller != "io" && controller != "cpu") return written;
  }
  return {};
}

// io.max wants whole disks; all of them, since a guest's pages may come from any.
std::vector<std::string> io_lines(const Limits& limits) {
  std::vector<std::string> lines;
  if (!limits.io_read && !limits.io_write) return lines;
  for (const std::string& disk : disks()) {
    const auto device = sys::try_read_file(fmt::format("/sys/block/{}/dev", disk), 64);
    if (!device) continue;
    std::string line = device->substr(0, device->find('\n'));
    if (limits.io_read) line += fmt::format(" rbps={}", *limits.io_read);
    if (limits.io_write) line += fmt::format(" wbps={}", *limits.io_write);
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

std::string box_cgroup_name() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return fmt::format("{}{}-{:x}", kCgroupPrefix, ::getpid(), now);
}

bool accounts_cpu(const Policy& policy) { return policy.limits.cpu_time.has_value(); }

Result<BoxCgroup> BoxCgroup::make(const Plan& plan, const std::string& name) {
  BoxCgroup cgroup = PCTX_TRY(reserve(plan.cgroup, accounts_cpu(plan.policy), name));
  PCTX_TRY(cgroup.bind(plan));
  return cgroup;
}

Result<BoxCgroup> BoxCgroup::reserve(const CgroupHost& host, bool cpu_accounting, const std::string& box_name) {
  BoxCgroup cgroup;
  cgroup.version_ = host.version;
  for (const Hierarchy& hierarchy : hierarchies(host, cpu_accounting)) {
    Part part{hierarchy.parent, box_name, hierarchy.controller, open_directory(hierarchy.parent), Fd{}};
    if (!part.parent) return os_error(fmt::format("cannot open {}", hierarchy.parent));
    const bool first = cgroup.parts_.empty();
    // Shared, so that a sweeper does not take the directory between its making and its locking.
    if (first) (void)::flock(part.parent.get(), LOCK_SH);
    if (host.version == CgroupVersion::v2) PCTX_TRY(prepare_unified(host, part.parent.get()));
    if (::mkdirat(part.parent.get(), box_name.c_str(), 0755) != 0)
      return os_error(fmt::format("cannot make a cgroup in {}", hierarchy.parent));
    part.directory = Fd{::openat(part.parent.get(), box_name.c_str(), kDirectory)};
    cgroup.parts_.push_back(std::move(part));
    const Part& made = cgroup.parts_.back();
    if (!made.directory) return os_error("cannot open the box's cgroup");
    if (!first) continue;
    (void)::flock(made.directory.get(), LOCK_EX | LOCK_NB);
    (void)::flock(made.parent.get(), LOCK_UN);
  }
  return cgroup;
}

Result<void> BoxCgroup::bind(const Plan& plan) const {
  for (const CgroupWrite& write : plan.cgroup_writes) {
    const Part* where = part(version_ == CgroupVersion::v2 ? "" : write.controller);
    if (where == nullptr) continue;
    auto written = sys::write_at(where->directory.get(), write.file, write.value);
    if (!written && (write.may_fail_with == 0 || written.error().code != write.may_fail_with))
      return std::move(written).error();
  }
  if (version_ == CgroupVersion::v2 && !parts_.empty()) {
    // Not every device can be throttled; if none can, nothing would be.
    std::optional<Error> refused;
    bool taken = false;
    for (const std::string& line : io_lines(plan.policy.limits)) {
      auto written = sys::write_at(parts_[0].directory.get(), "io.max", line);
      taken |= written.has_value();
      if (!written) refused = std::move(written).error();
    }
    if (refused && !taken && !plan.policy.allow_degraded.test(index(Layer::cgroups))) return *std::move(refused);
  }
  return {};
}

BoxCgroup::~BoxCgroup() { (void)remove(); }

const BoxCgroup::Part* BoxCgroup::part(std::string_view controller) const {
  for (const Part& candidate : parts_)
    if (candidate.controller == controller) return &candidate;
  return nullptr;
}

std::vector<BoxCgroup::Handle> BoxCgroup::handles() const {
  std::vector<Handle> list;
  for (const Part& entry : parts_) list.push_back({entry.parent.get(), entry.directory.get(), entry.name.c_str()});
  return list;
}

int BoxCgroup::directory() const {
  return version_ == CgroupVersion::v2 && !parts_.empty() ? parts_[0].directory.get() : -1;
}

Result<std::vector<Fd>> BoxCgroup::open_tasks() const {
  std::vector<Fd> tasks;
  if (version_ != CgroupVersion::v1) return tasks;
  for (const Part& entry : parts_) tasks.push_back(PCTX_TRY(sys::open_at(entry.directory.get(), "tasks", O_WRONLY)));
  return tasks;
}

Result<void> BoxCgroup::limit_processes(std::uint64_t most) const {
  const Part* where = part(version_ == CgroupVersion::v2 ? "" : "pids");
  if (where == nullptr) return {};
  return sys::write_at(where->directory.get(), "pids.max", std::to_string(most));
}

Fd BoxCgroup::watch_memory() const {
  const Part* memory = version_ == CgroupVersion::v1 ? part("memory") : nullptr;
  if (memory == nullptr) return {};
  Fd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  const Fd control{::openat(memory->directory.get(), "memory.oom_control", O_RDONLY | O_CLOEXEC)};
  if (!event || !control) return {};
  if (!sys::write_at(memory->directory.get(), "cgroup.event_control", fmt::format("{} {}", event.get(), control.get())))
    return {};
  return event;
}

CgroupUsage BoxCgroup::usage() const {
  CgroupUsage usage;
  if (parts_.empty()) return usage;
  const int first = parts_[0].directory.get();
  if (version_ == CgroupVersion::v2) {
    usage.peak_memory = number(first, "memory.peak");
    if (const auto events = sys::try_read_file("memory.events", 4096, first))
      usage.oom_kills = keyed(*events, "oom_kill") + keyed(*events, "oom_group_kill");
    if (const auto stat = sys::try_read_file("cpu.stat", 4096, first))
      usage.cpu_microseconds = keyed(*stat, "usage_usec");
  } else {
    usage.peak_memory = number(first, "memory.max_usage_in_bytes");
    if (const auto control = sys::try_read_file("memory.oom_control", 4096, first))
      usage.oom_kills = keyed(*control, "oom_kill");
    const Part* accounting = part("cpuacct");
    const Part* cpu = accounting != nullptr ? accounting : part("cpu");
    if (cpu != nullptr)
      if (const auto nanoseconds = number(cpu->directory.get(), "cpuacct.usage"))
        usage.cpu_microseconds = *nanoseconds / 1000;
  }
  return usage;
}

bool BoxCgroup::counts_cpu() const { return usage().cpu_microseconds.has_value(); }

std::optional<std::uint64_t> BoxCgroup::processes() const {
  const Part* pids = part(version_ == CgroupVersion::v2 ? "" : "pids");
  return pids != nullptr ? number(pids->directory.get(), "pids.current") : std::nullopt;
}

std::uint64_t BoxCgroup::refused_processes() const {
  const Part* pids = part(version_ == CgroupVersion::v2 ? "" : "pids");
  if (pids == nullptr) return 0;
  return keyed(sys::try_read_file("pids.events", 256, pids->directory.get()).value_or(""), "max");
}

std::optional<std::uint64_t> BoxCgroup::memory() const {
  if (parts_.empty()) return std::nullopt;
  return number(parts_[0].directory.get(), version_ == CgroupVersion::v2 ? "memory.current" : "memory.usage_in_bytes");
}

void BoxCgroup::kill() const {
  for (const Part& entry : parts_) kill_members(entry.directory.get());
}

void BoxCgroup::remove_empty() {
  while (!parts_.empty() && ::unlinkat(parts_.back().parent.get(), parts_.back().name.c_str(), AT_REMOVEDIR) == 0)
    parts_.pop_back();
}

Result<void> BoxCgroup::remove() {
  while (!parts_.empty()) {
    const Part entry = std::move(parts_.back());
    parts_.pop_back();
    if (!remove_directory(entry.parent.get(), entry.name, entry.directory.get()))
      return os_error(fmt::format("cannot remove the cgroup {}/{}", entry.where, entry.name));
  }
  return {};
}

void settle_in_scope(const CgroupHost& host) {
  if (!host.own_scope) return;
  if (const Fd parent = open_directory(host.unified)) (void)prepare_unified(host, parent.get());
}

void sweep_cgroups(const CgroupHost& host) {
  const auto list = hierarchies(host, true);
  if (list.empty()) return;
  const Fd parent = open_directory(list[0].parent);
  DIR* entries = parent ? ::fdopendir(::openat(parent.get(), ".", kDirectory)) : nullptr;
  if (entries == nullptr) return;
  bool locked = false;
  while (const dirent* entry = ::readdir(entries)) {
    if (!std::string_view{entry->d_name}.starts_with(kCgroupPrefix)) continue;
    if (!locked && ::flock(parent.get(), LOCK_EX | LOCK_NB) != 0) break;  // somebody is making a box, or sweeping
    locked = true;
    const std::string leftover = entry->d_name;
    const Fd box{::openat(parent.get(), leftover.c_str(), kDirectory)};
    if (!box || ::flock(box.get(), LOCK_EX | LOCK_NB) != 0) continue;  // its owner lives
    for (auto hierarchy = list.rbegin(); hierarchy != list.rend(); ++hierarchy) {
      const Fd directory = open_directory(hierarchy->parent);
      const Fd part{::openat(directory.get(), leftover.c_str(), kDirectory)};
      if (part) (void)remove_directory(directory.get(), leftover, part.get());
    }
  }
  ::closedir(entries);
}

}  // namespace pctx
