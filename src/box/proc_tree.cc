#include "box/proc_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx {
namespace {

// "Name:   123 kB" in bytes.
std::uint64_t kilobytes(const std::string& table, const char* name) {
  return table_number(table, name).value_or(0) * 1024;
}

// nullopt: it has no memory, or not any more.
std::optional<Resident> resident(const std::optional<std::string>& status) {
  if (!status || !table_number(*status, "VmRSS")) return std::nullopt;
  return Resident{kilobytes(*status, "RssAnon") + kilobytes(*status, "VmSwap") + kilobytes(*status, "VmPTE"),
                  kilobytes(*status, "RssShmem")};
}

std::optional<std::string> status_of(int proc, const std::string& path) {
  return sys::try_read_file(path + "/status", 16384, proc);
}

}  // namespace

std::optional<std::uint64_t> table_number(const std::string& table, const char* name) {
  const std::size_t at = table.find(fmt::format("\n{}:", name));
  if (at == std::string::npos) return std::nullopt;
  return std::strtoull(table.c_str() + at + std::strlen(name) + 2, nullptr, 10);
}

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

bool RollCall::call() {
  if (round_ > 0 && !std::exchange(missed_, false)) missed_always_ = false;
  const std::vector<std::string> listed = numbered(proc_, ".");
  here_ = {listed.begin(), listed.end()};
  newcomers_.clear();
  std::copy_if(listed.begin(), listed.end(), std::back_inserter(newcomers_),
               [&](const std::string& pid) { return called_.insert(pid).second; });
  settled_ = newcomers_.empty();
  return !settled_ && ++round_ <= rounds_;
}

Holder memory_holder(int proc, const std::string& pid) {
  constexpr int kTries = 64;
  const auto status = status_of(proc, pid);
  Holder holder;
  if (!status) return holder;
  holder.threads = table_number(*status, "Threads").value_or(1);
  holder.parent = std::to_string(table_number(*status, "PPid").value_or(0));
  const auto spoken_for_by = [&](std::string path, const Resident& resident) {
    holder.path = std::move(path);
    holder.resident = resident;
    return holder;
  };
  if (const auto own = resident(status)) return spoken_for_by(pid, *own);
  std::set<std::string> seen;
  for (int i = 0; i < kTries; ++i) {
    bool new_one = false;
    for (const std::string& thread : numbered(proc, pid + "/task")) {
      new_one |= seen.insert(thread).second;
      const std::string path = pid + "/task/" + thread;
      if (const auto shared = resident(status_of(proc, path))) return spoken_for_by(path, *shared);
    }
    if (!new_one) return holder;  // it is about to end
  }
  holder.hidden = true;
  return holder;
}

std::optional<Share> proportional(int proc, const std::string& path) {
  const auto rollup = sys::try_read_file(path + "/smaps_rollup", 16384, proc);
  const auto status = status_of(proc, path);
  if (!rollup || rollup->empty()) {
    const auto all = resident(status);
    return all ? std::optional{Share{*all, all->own}} : std::nullopt;
  }
  const std::uint64_t anonymous = kilobytes(*rollup, "Pss_Anon");
  const std::uint64_t rest = kilobytes(*rollup, "SwapPss") + (status ? kilobytes(*status, "VmPTE") : 0);
  return Share{{anonymous + rest, kilobytes(*rollup, "Pss_Shmem")},
               std::min(anonymous, kilobytes(*rollup, "Private_Dirty"))};
}

Threads threads_of(int proc, const std::string& pid) {
  Threads threads;
  for (const std::string& thread : numbered(proc, pid + "/task")) {
    const auto where = sys::try_read_file(fmt::format("{}/task/{}/wchan", pid, thread), 4096, proc);
    if (where && (*where == "kernel_clone" || *where == "wait_for_vfork_done")) ++threads.waiting;
    if (where && *where == "0") ++threads.running;
  }
  return threads;
}

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

Millis ticks_to_time(std::uint64_t ticks) {
  return Millis{static_cast<Millis::rep>(ticks * 1000 / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK)))};
}

}  // namespace pctx
