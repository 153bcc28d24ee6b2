#include "box/janitor.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>

#include "sys/blocked_signals.h"
#include "sys/files.h"

namespace pctx {

// Everything the janitor touches, and its stack. The supervisor's heap is off limits to it: the supervisor works on it
// at the same time, and may be killed in the middle of an allocation.
struct Janitor::Task {
  static constexpr std::size_t kMaxParts = 4;
  struct Part {
    int parent, directory;
    const char* name;
  };
  std::array<Part, kMaxParts> parts{};
  std::size_t count = 0;
  std::array<int, 2 * kMaxParts + 1> keep{};  // sorted
  std::size_t keep_count = 0;
  int lifeline = -1;
  alignas(64) std::array<char, 32768> stack;

  void kill_members(const Part& part) const noexcept;
  void clean() const noexcept;
  static int run(void* self) noexcept;
};

// Without allocation: pids are read from the file in pieces.
void Janitor::Task::kill_members(const Part& part) const noexcept {
  const int fd = ::openat(part.directory, "cgroup.procs", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  std::array<char, 4096> text;
  long pid = 0;
  for (ssize_t got; (got = ::read(fd, text.data(), text.size())) > 0;)
    for (ssize_t i = 0; i < got; ++i) {
      const char c = text[static_cast<std::size_t>(i)];
      if (c >= '0' && c <= '9') {
        pid = pid * 10 + (c - '0');
        continue;
      }
      if (pid > 1) ::kill(static_cast<pid_t>(pid), SIGKILL);
      pid = 0;
    }
  ::close(fd);
}

void Janitor::Task::clean() const noexcept {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::size_t left = 0;
    for (std::size_t i = count; i-- > 0;) {
      kill_members(parts[i]);
      // The first one is what a sweeper looks for: it goes last.
      if (i == 0 && left > 0) break;
      if (::unlinkat(parts[i].parent, parts[i].name, AT_REMOVEDIR) != 0 && errno != ENOENT) ++left;
    }
    if (left == 0) return;
    const timespec pause{0, 5'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

int Janitor::Task::run(void* self) noexcept {
  const Task& task = *static_cast<const Task*>(self);
  ::setsid();
  // The caller's pipes must not stay open because of us (a reader waits for their end), nor the status socket, whose
  // end is what init waits for.
  sys::close_all_but({task.keep.data(), task.keep_count});
  char byte;
  while (::read(task.lifeline, &byte, 1) < 0 && errno == EINTR) {
  }
  task.clean();
  return 0;
}

Janitor::Janitor() = default;
Janitor::~Janitor() { dismiss(); }

Janitor Janitor::start(const BoxCgroup& cgroup) {
  Janitor janitor;
  int ends[2];
  if (!cgroup.active() || ::pipe2(ends, O_CLOEXEC) != 0) return janitor;
  const Fd wait_end{ends[0]};
  janitor.lifeline_ = Fd{ends[1]};
  janitor.task_ = std::make_unique_for_overwrite<Task>();
  Task& task = *janitor.task_;
  task.count = task.keep_count = 0;
  task.lifeline = task.keep[task.keep_count++] = wait_end.get();
  for (const BoxCgroup::Handle& handle : cgroup.handles()) {
    if (task.count == Task::kMaxParts) break;
    task.parts[task.count++] = {handle.parent, handle.directory, handle.name};
    task.keep[task.keep_count++] = handle.parent;
    task.keep[task.keep_count++] = handle.directory;
  }
  std::sort(task.keep.begin(), task.keep.begin() + static_cast<std::ptrdiff_t>(task.keep_count));
  // Blocked before, blocked in it for ever: what ends the supervisor's process group must not end its janitor.
  const sys::BlockedSignals blocked;
  janitor.pid_ = ::clone(&Task::run, task.stack.data() + task.stack.size(), CLONE_VM | SIGCHLD, &task);
  return janitor;
}

Janitor::Janitor(Janitor&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), lifeline_(std::move(other.lifeline_)), task_(std::move(other.task_)) {}

Janitor& Janitor::operator=(Janitor&& other) noexcept {
  dismiss();
  pid_ = std::exchange(other.pid_, -1);
  lifeline_ = std::move(other.lifeline_);
  task_ = std::move(other.task_);
  return *this;
}

void Janitor::release() noexcept {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

void Janitor::dismiss() noexcept {
  if (pid_ <= 0) return;
  release();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace pctx
