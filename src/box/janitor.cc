#include "box/janitor.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "sys/kernel_abi.h"

namespace pctx {

Janitor Janitor::start(BoxCgroup& cgroup) {
  Janitor janitor;
  int ends[2];
  if (!cgroup.active() || ::pipe2(ends, O_CLOEXEC) != 0) return janitor;
  Fd wait_end{ends[0]};
  janitor.lifeline_ = Fd{ends[1]};
  // The supervisor has one thread, so this is a plain fork and the child may use the heap.
  const pid_t pid = ::fork();
  if (pid != 0) {
    janitor.pid_ = pid;
    return janitor;
  }
  janitor.lifeline_.reset();
  ::setsid();
  ::prctl(PR_SET_NAME, "pctx-janitor");
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  // The caller's pipes must not stay open because of us: a reader would wait for their end.
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  // Nor anything else: init waits for the end of the status socket, of which we would hold a copy.
  std::vector<int> keep = cgroup.descriptors();
  keep.push_back(wait_end.get());
  std::sort(keep.begin(), keep.end());
  int next = 3;
  for (int fd : keep) {
    if (fd > next) (void)abi::close_range(static_cast<unsigned>(next), static_cast<unsigned>(fd - 1), 0);
    next = std::max(next, fd + 1);
  }
  (void)abi::close_range(static_cast<unsigned>(next), ~0U, 0);
  char byte;
  while (::read(wait_end.get(), &byte, 1) < 0 && errno == EINTR) {
  }
  cgroup.kill();
  (void)cgroup.remove();
  ::_exit(0);
}

Janitor::Janitor(Janitor&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), lifeline_(std::move(other.lifeline_)) {}

Janitor& Janitor::operator=(Janitor&& other) noexcept {
  dismiss();
  pid_ = std::exchange(other.pid_, -1);
  lifeline_ = std::move(other.lifeline_);
  return *this;
}

void Janitor::dismiss() noexcept {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace pctx
