#include "box/sweep.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/fd.h"
#include "base/units.h"
#include "sys/files.h"

namespace pctx {
namespace {

constexpr std::uint64_t kMapping = 256;  // what the kernel has for one mapping: 238 bytes were seen on 6.18
constexpr std::uint64_t kAncestor = 64;  // and for each process that it came from by a fork (an anon_vma_chain)
// Of all lists of one look: ten processes with 65,530 mappings, the usual most, and names of common length.
constexpr std::size_t kMostMaps = 48_MiB;
// No path that a program can name is longer than 4 KiB; a control character in it is shown by four.
constexpr std::size_t kLongestLine = 64_KiB;
constexpr std::size_t kFields = 1_KiB;          // what smaps has below such a line
constexpr std::size_t kSmallestBuffer = 4_KiB;  // that an open file of /proc has once it was read
constexpr std::uint64_t kClose = 1_MiB;         // between two looks at memory that is in use
constexpr unsigned kMostDoubts = 3;             // looks in a row

std::uint64_t most_mappings() {
  const auto most = sys::try_read_file("/proc/sys/vm/max_map_count");
  return most ? std::strtoull(most->c_str(), nullptr, 10) : 65'530;
}

bool has_buffer(int folder, const std::string& descriptor) {
  std::array<char, 8> target{};
  const ssize_t length = ::readlinkat(folder, descriptor.c_str(), target.data(), target.size());
  const std::string_view start{target.data(), length > 0 ? static_cast<std::size_t>(length) : 0};
  return start.starts_with("/proc/") || start.starts_with("/sys/");
}

// All threads of a process have one table of descriptors: see clone_flags in plan/syscall_policy.h.
std::uint64_t open_tables(int proc, const std::string& holder) {
  const Fd folder{::openat(proc, (holder + "/fd").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!folder && (errno == EACCES || errno == EPERM)) {
    const auto status = sys::try_read_file(holder + "/status", 16384, proc);
    return status ? table_number(*status, "FDSize").value_or(0) : 0;
  }
  if (!folder) return 0;
  const std::vector<std::string> open = numbered(folder.get(), ".");  // without 0, which is one of very many at most
  return static_cast<std::uint64_t>(std::count_if(
      open.begin(), open.end(), [&](const std::string& descriptor) { return has_buffer(folder.get(), descriptor); }));
}

}  // namespace

bool Sweep::call() {
  while (roll_.call()) {
    for (const std::string& pid : roll_.newcomers()) {
      Holder holder = memory_holder(proc_, pid);
      if (holder.path.empty()) {
        roll_.missed();
        continue;
      }
      left_.push_back(pid);
      seen_[pid] = {.holder = std::move(holder), .newcomer = !first_};
    }
    if (!left_.empty()) return true;
  }
  return false;
}

void Sweep::settle_what_is_wanted() {
  std::uint64_t sum = 0, largest = 0;
  for (const auto& [pid, seen] : seen_) {
    const std::uint64_t own = seen.holder.resident.own + seen.holder.resident.shared;
    sum += own;
    largest = std::max(largest, own);
  }
  wanted_.exact |= sum > wanted_.highest && sum > largest + kClose;
}

std::optional<Resident> Sweep::share_now(const Seen& seen) const {
  const auto share = proportional(proc_, seen.holder.path);
  if (!share) return std::nullopt;
  return seen.newcomer ? Resident{.own = share->alone} : share->resident;
}

bool Sweep::step() {
  if (left_.empty() && !call()) return false;
  if (std::exchange(first_, false)) settle_what_is_wanted();
  const std::string pid = std::move(left_.back());
  left_.pop_back();
  Seen& seen = seen_[pid];
  if (wanted_.exact) {
    const auto share = share_now(seen);
    if (!share) roll_.missed();
    if (share) seen.share = *share;
  }
  if (wanted_.mappings) {
    count_mappings(seen);
    seen.tables = open_tables(proc_, seen.holder.path);
  }
  return true;
}

// Shared anonymous memory stays allocated when its pages are given up with madvise(), though nobody's resident set
// shows it: such mappings count with their full size, once per object.
void Sweep::note_line(std::string_view line) {
  wanted_.longest_line = std::max(wanted_.longest_line, line.size());
  if (!line.ends_with("/dev/zero (deleted)") && line.find("/SYSV") == std::string_view::npos) return;
  unsigned long long from = 0, to = 0, offset = 0, inode = 0;
  char mode[8] = {}, device[16] = {};
  if (std::sscanf(std::string{line}.c_str(), "%llx-%llx %7s %llx %15s %llu", &from, &to, mode, &offset, device,
                  &inode) != 6)
    return;
  std::uint64_t& size = objects_[fmt::format("{} {}", device, inode)];
  size = std::max<std::uint64_t>(size, offset + (to - from));
}

// How many one process has. Names can make the lists as long as their owner likes: past our patience, as many as can
// be.
void Sweep::count_mappings(Seen& seen) {
  const Fd maps{::openat(proc_, (seen.holder.path + "/maps").c_str(), O_RDONLY | O_CLOEXEC)};
  std::string text;
  std::size_t done = 0;
  while (read_ < kMostMaps && text.size() - done <= kLongestLine) {
    const std::size_t kept = text.size() - done;
    text.erase(0, done);
    text.resize(kept + 65536);
    const ssize_t got = ::read(maps.get(), text.data() + kept, 65536);
    if (got < 0 && errno == EINTR) {
      text.resize(kept);
      done = 0;
      continue;
    }
    if (got <= 0) return;
    read_ += static_cast<std::size_t>(got);
    text.resize(kept + static_cast<std::size_t>(got));
    done = 0;
    for (std::size_t end; (end = text.find('\n', done)) != std::string::npos; done = end + 1, ++seen.mappings)
      note_line(std::string_view{text}.substr(done, end - done));
  }
  wanted_.longest_line = std::max(wanted_.longest_line, text.size() - done);
  seen.mappings = std::max(seen.mappings, most_mappings());
}

// Of whom it may have mappings: its parents, and since their number is lost with them, all whose parent has ended.
std::uint64_t Sweep::ancestors(const std::string& pid) const {
  const auto orphans = static_cast<std::uint64_t>(
      std::count_if(seen_.begin(), seen_.end(), [](const auto& each) { return each.second.holder.parent == "1"; }));
  std::uint64_t depth = 0;
  for (auto at = seen_.find(pid); at != seen_.end() && at->first != "1" && depth < seen_.size(); ++depth)
    at = seen_.find(at->second.holder.parent);
  return depth + (orphans > 1 ? orphans - 1 : 0);
}

std::uint64_t Sweep::kept() const {
  std::uint64_t sum = 0, tables = 0;
  for (const auto& [pid, seen] : seen_) {
    if (!roll_.is_here(pid)) continue;
    sum += seen.mappings * (kMapping + kAncestor * ancestors(pid));
    tables += seen.tables;
  }
  return sum + tables * std::bit_ceil(std::max(kSmallestBuffer, wanted_.longest_line + kFields));
}

std::uint64_t Sweep::parked() const {
  std::uint64_t sum = 0;
  for (const auto& [object, size] : objects_) sum += size;
  return sum;
}

Resident Sweep::exact() {
  std::map<std::string, Resident> counted;
  for (const auto& [pid, seen] : seen_)
    if (roll_.is_here(pid)) counted[pid] = seen.share;
  const auto close = [&](const std::string& one, const std::string& other) {
    const std::uint64_t a = counted[one].own, b = counted[other].own;
    return a <= b + kClose && b <= a + kClose;
  };
  std::set<std::string> read_again;
  const auto read = [&](const std::string& pid, const Seen& seen) {
    if (read_again.insert(pid).second) counted[pid] = share_now(seen).value_or(Resident{});
  };
  // Between vfork and exec. The one who waits has one such child for each thread that does; more do not pass for it.
  for (const auto& [pid, parent] : seen_) {
    if (!roll_.is_here(pid)) continue;
    std::optional<Threads> threads;
    for (const auto& [other, child] : seen_) {
      if (child.holder.parent != pid || !roll_.is_here(other) || !close(pid, other)) continue;
      if (!threads) threads = threads_of(proc_, pid);
      if (threads->waiting > 0) {
        --threads->waiting;
        counted[other] = {};
        continue;
      }
      // The exec may have come since the two were read, one after the other. The child first: what it gives up by its
      // end is its parent's alone then.
      read(other, child);
      read(pid, parent);
      // Or the parent has not come to wait yet, for want of a processor. A guest can have it seem so for as long as it
      // likes, with children that come and go: one of each parent is left out, which counts itself, and not for long.
      if (threads->running == 0 || !close(pid, other) || wanted_.doubts >= kMostDoubts) continue;
      threads->running = 0;
      doubted_ = true;
      counted[other] = {};
    }
  }
  Resident sum;
  for (const auto& [pid, share] : counted) {
    sum.own += share.own;
    sum.shared += share.shared;
  }
  return sum;
}

bool Sweep::hidden() const { return wanted_.longest_line > kLongestLine || (wanted_.exact && roll_.blind()); }

}  // namespace pctx
