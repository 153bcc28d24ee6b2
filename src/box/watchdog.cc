#include "box/watchdog.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx {
namespace {

// "Name:   123 kB" in bytes.
std::uint64_t kilobytes(const std::string& text, const char* name) {
  const std::size_t at = text.find(name);
  if (at == std::string::npos) return 0;
  return std::strtoull(text.c_str() + at + std::strlen(name), nullptr, 10) * 1024;
}

struct Resident {
  std::uint64_t own = 0;     // anonymous, swapped out included, and page tables
  std::uint64_t shared = 0;  // tmpfs and shared anonymous
};

Resident resident(int proc, const std::string& pid) {
  const auto status = sys::try_read_file(pid + "/status", 16384, proc);
  if (!status) return {};
  return {kilobytes(*status, "RssAnon:") + kilobytes(*status, "VmSwap:") + kilobytes(*status, "VmPTE:"), kilobytes(*status, "RssShmem:")};
}

// Pages shared by several processes are split between them. A guest that closes itself to inspection is counted in full.
Resident proportional(int proc, const std::string& pid) {
  const auto rollup = sys::try_read_file(pid + "/smaps_rollup", 16384, proc);
  if (!rollup || rollup->empty()) return resident(proc, pid);
  const auto status = sys::try_read_file(pid + "/status", 16384, proc);
  return {kilobytes(*rollup, "Pss_Anon:") + kilobytes(*rollup, "SwapPss:") + (status ? kilobytes(*status, "VmPTE:") : 0),
          kilobytes(*rollup, "Pss_Shmem:")};
}

// Shared anonymous memory stays allocated when its pages are given up with madvise(), though nobody's resident set shows
// it: such mappings count with their full size, once per object.
void shared_anonymous(int proc, const std::string& pid, std::map<std::string, std::uint64_t>& objects) {
  const auto maps = sys::try_read_file(pid + "/maps", 4_MiB, proc);
  if (!maps) return;
  for (std::string_view line : sys::split(*maps, '\n')) {
    if (!line.ends_with("/dev/zero (deleted)") && line.find("/SYSV") == std::string_view::npos) continue;
    unsigned long long from = 0, to = 0, offset = 0, inode = 0;
    char mode[8] = {}, device[16] = {};
    if (std::sscanf(std::string{line}.c_str(), "%llx-%llx %7s %llx %15s %llu", &from, &to, mode, &offset, device, &inode) != 6)
      continue;
    std::uint64_t& size = objects[fmt::format("{} {}", device, inode)];
    size = std::max<std::uint64_t>(size, offset + (to - from));
  }
}

// Fields 14 to 17 of /proc/N/stat, after the name, which may hold anything but ends with the last parenthesis.
std::uint64_t cpu_ticks(int proc, const std::string& pid) {
  const auto stat = sys::try_read_file(pid + "/stat", 4096, proc);
  if (!stat) return 0;
  const std::size_t name_end = stat->rfind(')');
  if (name_end == std::string::npos) return 0;
  std::uint64_t sum = 0;
  int field = 2;
  for (std::string_view word : sys::split(std::string_view{*stat}.substr(name_end + 1), ' ')) {
    if (word.empty()) continue;
    if (++field >= 14 && field <= 17) sum += std::strtoull(std::string{word}.c_str(), nullptr, 10);
  }
  return sum;
}

std::uint64_t threads(int proc, const std::string& pid) {
  const auto status = sys::try_read_file(pid + "/status", 16384, proc);
  const std::size_t at = status ? status->find("Threads:") : std::string::npos;
  return at == std::string::npos ? 1 : std::strtoull(status->c_str() + at + 8, nullptr, 10);
}

}  // namespace

TreeUsage measure_tree(int proc, int scratch, std::uint64_t limit, bool look_closely) {
  TreeUsage usage;
  std::uint64_t stored = 0;
  struct statfs space {};
  if (::fstatfs(scratch, &space) == 0) stored = (space.f_blocks - space.f_bfree) * static_cast<std::uint64_t>(space.f_bsize);
  const int listing = ::openat(proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = listing >= 0 ? ::fdopendir(listing) : nullptr;
  if (entries == nullptr) return usage;
  std::vector<std::string> pids;
  while (const dirent* entry = ::readdir(entries))
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') pids.emplace_back(entry->d_name);
  ::closedir(entries);
  std::uint64_t ticks = 0;
  Resident sum;
  const auto add = [&sum](const Resident& one) {
    sum.own += one.own;
    sum.shared += one.shared;
  };
  for (const std::string& pid : pids) {
    add(resident(proc, pid));
    ticks += cpu_ticks(proc, pid);
    if (pid != "1") usage.processes += threads(proc, pid);
  }
  if (stored + sum.own + sum.shared > limit) {
    sum = {};
    for (const std::string& pid : pids) add(proportional(proc, pid));
  }
  if (look_closely) {
    std::map<std::string, std::uint64_t> objects;
    for (const std::string& pid : pids) shared_anonymous(proc, pid, objects);
    std::uint64_t parked = 0;
    for (const auto& [object, size] : objects) parked += size;
    sum.shared = std::max(sum.shared, parked);
  }
  usage.memory = stored + sum.own + sum.shared;
  usage.cpu = Millis{static_cast<Millis::rep>(ticks * 1000 / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK)))};
  return usage;
}

}  // namespace pctx
