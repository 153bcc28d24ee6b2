#include "box/lookout.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "box/socket_memory.h"
#include "sys/blocked_signals.h"
#include "sys/files.h"
#include "wire/packet.h"

namespace pctx {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kSockets = 's', kLocks = 'l';
constexpr Millis kPause{50};          // between two looks at one box
constexpr Millis kLongestPause{250};  // if the box has much to look at, so many times what that took of a processor
constexpr int kShare = 10;

struct Watched {
  Fd tell, proc, locks;
  SocketMeter sockets;
  std::uint64_t memory = 0;
  Clock::time_point next = Clock::now();
};

std::chrono::nanoseconds cpu_time() {
  timespec spent{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return std::chrono::seconds{spent.tv_sec} + std::chrono::nanoseconds{spent.tv_nsec};
}

// What the box has too much of, if anything.
std::optional<char> look(Watched& box) {
  const auto before = cpu_time();
  std::optional<char> found;
  if (box.sockets.measure(box.proc.get(), box.memory) > box.memory) found = kSockets;
  if (!found && count_lines(box.locks.get(), kMostLocks) > kMostLocks) found = kLocks;
  box.next = Clock::now() + std::clamp<Clock::duration>(kShare * (cpu_time() - before), kPause, kLongestPause);
  return found;
}

bool take_order(int orders, std::vector<Watched>& boxes) {
  wire::Packet packet;
  const wire::Received got = wire::receive(orders, packet);
  if (got == wire::Received::nothing) return true;
  unsigned long memory = 0;
  int charged = 0;
  if (got != wire::Received::packet || packet.fds.size() < 2 ||
      std::sscanf(packet.text.c_str(), "%lu %d", &memory, &charged) != 2)
    return false;
  Watched& box = boxes.emplace_back();
  box.tell = std::move(packet.fds[0]);
  box.proc = std::move(packet.fds[1]);
  box.memory = memory;
  box.locks = Fd{::openat(box.proc.get(), "locks", O_RDONLY | O_CLOEXEC)};
  if (packet.fds.size() > 2) box.sockets = SocketMeter{std::move(packet.fds[2]), true, charged != 0};
  return true;
}

int wait_budget(const std::vector<Watched>& boxes) {
  if (boxes.empty()) return -1;
  const auto first = std::min_element(boxes.begin(), boxes.end(),
                                      [](const Watched& one, const Watched& other) { return one.next < other.next; });
  return std::max(0, static_cast<int>(std::chrono::ceil<Millis>(first->next - Clock::now()).count()));
}

// A copy of a process that has one thread: nothing is half done in it.
[[noreturn]] void run_lookout(int orders) {
  sys::close_all_but({&orders, 1});
  (void)::prctl(PR_SET_NAME, "pctx-lookout");
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<Watched> boxes;
  for (;;) {
    std::vector<pollfd> events{{orders, POLLIN, 0}};
    for (const Watched& box : boxes) events.push_back({box.tell.get(), 0, 0});  // closed on the other side
    if (::poll(events.data(), events.size(), wait_budget(boxes)) < 0 && errno != EINTR) ::_exit(1);
    for (std::size_t i = boxes.size(); i > 0; --i)
      if (events[i].revents != 0) boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(i - 1));
    for (Watched& box : boxes) {
      if (Clock::now() < box.next) continue;
      const auto found = look(box);
      if (found && ::send(box.tell.get(), &*found, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) box.tell.reset();
      if (found) box.next = Clock::now() + std::chrono::hours{1};  // it is told once, and ended
    }
    std::erase_if(boxes, [](const Watched& box) { return !box.tell; });
    if (events[0].revents != 0 && !take_order(orders, boxes)) ::_exit(0);
  }
}

}  // namespace

Lookout::~Lookout() { stop(); }

void Lookout::release() noexcept {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

void Lookout::stop() noexcept {
  release();
  orders_.reset();
  while (pid_ > 0 && ::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void Lookout::start() {
  auto ends = wire::pair(SOCK_SEQPACKET);
  if (!ends) return;
  // What ends the process group of a supervisor must not end its limits.
  const sys::BlockedSignals blocked;
  pid_ = ::fork();
  if (pid_ == 0) run_lookout(ends->second.get());
  if (pid_ > 0) orders_ = std::move(ends->first);
}

Result<Fd> Lookout::watch(const Box& box) {
  auto [ours, theirs] = PCTX_TRY(wire::pair(SOCK_SEQPACKET));
  std::vector<int> fds{theirs.get(), box.proc};
  if (box.diag >= 0) fds.push_back(box.diag);
  // Somebody may have killed it since the last box.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!orders_) start();
    if (orders_ && wire::send(orders_.get(), fmt::format("{} {:d}", box.memory, box.charged), fds))
      return std::move(ours);
    stop();
  }
  // Nothing binds a box then: it has to end.
  return unavailable("the process that watches the sockets and file locks of boxes cannot be started", "try again");
}

bool read_excess(int watched, Verdict& verdict) {
  char what = 0;
  if (::recv(watched, &what, 1, MSG_DONTWAIT) != 1) return false;
  (what == kLocks ? verdict.locks_over : verdict.memory_over) = true;
  return true;
}

std::uint64_t count_lines(int fd, std::uint64_t most) {
  std::uint64_t lines = 0;
  std::array<char, 16384> buffer;
  if (::lseek(fd, 0, SEEK_SET) != 0) return 0;
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || lines > most) return lines;
    lines += static_cast<std::uint64_t>(std::count(buffer.data(), buffer.data() + got, '\n'));
  }
}

}  // namespace pctx
