// What the /proc of a box tells of its processes: their memory and their time. A path is that of a process, or of one
// of its threads where /proc shows no memory for the process itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/units.h"

namespace pctx {

// The entries of a folder of /proc that are processes or threads.
std::vector<std::string> numbered(int proc, const std::string& folder);

struct Resident {
  std::uint64_t own = 0;     // anonymous, swapped out included, and page tables
  std::uint64_t shared = 0;  // tmpfs and shared anonymous
};

// Who speaks for a process's memory: where its first thread has ended, /proc shows none there, though the others have
// all of it.
struct Holder {
  std::string path;  // empty: nobody has any
  Resident resident;
  bool hidden = false;  // new threads came as fast as we looked, and each was gone before it could be read
  std::string parent;
  std::uint64_t threads = 1;
};
Holder memory_holder(int proc, const std::string& pid);

// Pages shared by several processes are split between them. A guest that closes itself to inspection is counted in
// full.
struct Share {
  Resident resident;
  std::uint64_t alone = 0;  // anonymous memory that nobody else has
};
std::optional<Share> proportional(int proc, const std::string& path);  // nullopt: it is gone

// Threads that sleep until a child has become another program: the kernel names the function that they sleep in. That a
// thread sleeps without being woken by signals says nothing, which any wait for a lock or a disk does.
struct Threads {
  std::size_t waiting = 0;
  std::size_t running = 0;  // or about to: the child may have come first
};
Threads threads_of(int proc, const std::string& pid);

// Lists the processes of a box until nobody new is there: memory may pass from one to another that came after a list
// was made, and leave none where it was.
class RollCall {
 public:
  RollCall(int proc, int rounds) : proc_(proc), rounds_(rounds) {}

  bool call();  // false: there are no newcomers, or there is no end of them
  const std::vector<std::string>& newcomers() const { return newcomers_; }
  void missed() { missed_ = true; }  // one of them had no memory any more
  bool is_here(const std::string& pid) const { return here_.contains(pid); }
  // There was no end of them, and in no round could all be read. Where processes only come and go fast, a round in
  // which there are few to read comes to its end before the next one starts.
  bool blind() const { return !settled_ && missed_always_; }

 private:
  int proc_, rounds_, round_ = 0;
  bool settled_ = false, missed_ = false, missed_always_ = true;
  std::set<std::string> called_, here_;
  std::vector<std::string> newcomers_;
};

struct CpuTicks {
  std::string start;           // when the process started: with the pid, who it is
  std::uint64_t own = 0;       // fields 14 and 15 of /proc/N/stat
  std::uint64_t children = 0;  // 16 and 17: of those it waited for
};
CpuTicks cpu_ticks(int proc, const std::string& pid);
Millis ticks_to_time(std::uint64_t ticks);

// The number behind "Name:" in a table of /proc, where it begins a line: a process may be called "RssAnon:", and its
// name comes first.
std::optional<std::uint64_t> table_number(const std::string& table, const char* name);

}  // namespace pctx
