#include "box/lookout.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "box/socket_memory.h"
#include "box/sweep.h"
#include "sys/blocked_signals.h"
#include "sys/cpu_clock.h"
#include "sys/files.h"
#include "wire/packet.h"

namespace pctx {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t milliseconds() { return std::chrono::ceil<Millis>(Clock::now().time_since_epoch()).count(); }

}  // namespace

// Which box's process is being read, and since when. The kernel makes whoever reads wait while the guest changes its
// mappings, and nothing ends that wait but the guest's end.
struct LookoutProgress {
  std::atomic<unsigned> number = 0;  // 0: none
  std::atomic<std::int64_t> since = 0;

  void begin(unsigned box) {
    since = milliseconds();
    number = box;
  }
  void end() { number = 0; }
};

namespace {

constexpr Millis kPause{50};            // between two looks at one box
constexpr Millis kLongestPause{1'000};  // if the box has much to look at, so many times what that took of a processor
constexpr int kShare = 10;
constexpr int kShareInDoubt = 3;  // the same where somebody waits to hear whether a box is above its limit
constexpr Millis kSlice{5};       // of a processor for one box: then it is the others' turn

struct Sighting {
  enum { figures, memory, locks } what = figures;
  Look look;
};

struct Watched {
  unsigned number = 0;
  Fd tell, proc, locks;
  SocketMeter sockets;
  std::uint64_t memory = 0;
  bool closely = false;
  bool in_doubt = false;  // an exact look was asked for, at once
  Clock::time_point next = Clock::now(), next_exact = next;

  std::optional<Sweep> sweep;  // under way
  Clock::duration cost{0};     // of the look that is under way
  std::uint64_t in_sockets = 0, kept = 0, parked = 0, highest = 0;
  std::size_t longest_line = 0;
  unsigned doubts = 0;

  Clock::time_point due() const { return sweep ? Clock::time_point{} : in_doubt ? std::min(next, next_exact) : next; }
};

// Sockets and locks. What takes longer is left to steps.
Sighting begin_look(Watched& box) {
  const bool all = Clock::now() >= box.next;
  box.cost = {};
  if (all) {
    box.in_sockets = box.sockets.measure(box.proc.get(), box.memory);
    if (box.in_sockets > box.memory) return {.what = Sighting::memory, .look = {}};
    if (count_locks(box.locks.get(), kMostLocks) > kMostLocks) return {.what = Sighting::locks, .look = {}};
  }
  if (box.closely)
    box.sweep.emplace(box.proc.get(), Sweep::Wanted{.mappings = all,
                                                    .exact = box.in_doubt,
                                                    .highest = box.highest,
                                                    .longest_line = box.longest_line,
                                                    .doubts = box.doubts});
  return {};
}

void pace(Watched& box, bool all) {
  const auto now = Clock::now();
  box.next_exact = now + std::min<Clock::duration>(kShareInDoubt * box.cost, kLongestPause);
  if (all) box.next = now + std::clamp<Clock::duration>(kShare * box.cost, kPause, kLongestPause);
}

// Nothing: it goes on.
std::optional<Sighting> go_on(Watched& box, LookoutProgress& progress) {
  const auto before = sys::cpu_time();
  Sighting found;
  if (!box.sweep) found = begin_look(box);
  bool more = box.sweep.has_value();
  while (more && sys::cpu_time() - before < kSlice) {
    progress.begin(box.number);
    more = box.sweep->step();
  }
  progress.end();
  if (more) {
    box.cost += sys::cpu_time() - before;
    return std::nullopt;
  }
  const bool all = !box.sweep || box.sweep->counted_mappings();
  if (box.sweep) {
    if (all) {
      box.kept = box.sweep->kept();
      box.parked = box.sweep->parked();
      box.longest_line = box.sweep->longest_line();
    }
    found.look = {.in_kernel = box.in_sockets + box.kept,
                  .parked = box.parked,
                  .exact = box.sweep->counted_exactly(),
                  .resident = {}};
    if (found.look.exact) {
      found.look.resident = box.sweep->exact();
      box.doubts = box.sweep->doubted() ? box.doubts + 1 : 0;
      box.highest = std::max(box.highest, found.look.resident.own + found.look.resident.shared);
      box.in_doubt = false;
    }
    if (box.sweep->hidden()) found.what = Sighting::memory;
    box.sweep.reset();
  }
  box.cost += sys::cpu_time() - before;
  pace(box, all);
  return found;
}

bool take_order(int orders, std::vector<Watched>& boxes) {
  wire::Packet packet;
  const wire::Received got = wire::receive(orders, packet);
  if (got == wire::Received::nothing) return true;
  unsigned number = 0;
  unsigned long memory = 0, most_received = 0;
  int own_network = 0, charged = 0, closely = 0;
  if (got != wire::Received::packet || packet.fds.size() < 3 ||
      std::sscanf(packet.text.c_str(), "%u %lu %d %d %d %lu", &number, &memory, &own_network, &charged, &closely,
                  &most_received) != 6)
    return false;
  Watched& box = boxes.emplace_back();
  box.number = number;
  box.tell = std::move(packet.fds[0]);
  box.proc = std::move(packet.fds[1]);
  box.memory = memory;
  box.closely = closely != 0;
  box.locks = std::move(packet.fds[2]);
  if (packet.fds.size() > 3)
    box.sockets = SocketMeter{std::move(packet.fds[3]), own_network != 0, charged != 0, most_received};
  return true;
}

int wait_budget(const std::vector<Watched>& boxes) {
  if (boxes.empty()) return -1;
  const auto first = std::min_element(boxes.begin(), boxes.end(),
                                      [](const Watched& one, const Watched& other) { return one.due() < other.due(); });
  if (first->sweep) return 0;
  return std::max(0, static_cast<int>(std::chrono::ceil<Millis>(first->due() - Clock::now()).count()));
}

void hear_requests(Watched& box) {
  char request = 0;
  while (::recv(box.tell.get(), &request, 1, MSG_DONTWAIT) == 1) box.in_doubt = true;
}

void look(Watched& box, LookoutProgress& progress) {
  const std::optional<Sighting> found = go_on(box, progress);
  if (!found || (found->what == Sighting::figures && !box.closely)) return;
  const bool told = ::send(box.tell.get(), &*found, sizeof *found, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof *found;
  if (found->what == Sighting::figures) return;  // the next ones may get through
  if (!told) box.tell.reset();
  box.next = box.next_exact = Clock::now() + std::chrono::hours{1};  // it is told once, and ended
}

// A copy of a process that has one thread: nothing is half done in it.
[[noreturn]] void run_lookout(int orders, LookoutProgress& progress) {
  sys::close_all_but({&orders, 1});
  (void)::prctl(PR_SET_NAME, "pctx-lookout");
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<Watched> boxes;
  for (;;) {
    std::vector<pollfd> events{{orders, POLLIN, 0}};
    for (const Watched& box : boxes) events.push_back({box.tell.get(), POLLIN, 0});
    if (::poll(events.data(), events.size(), wait_budget(boxes)) < 0 && errno != EINTR) ::_exit(1);
    for (std::size_t i = boxes.size(); i > 0; --i) {
      if ((events[i].revents & POLLIN) != 0) hear_requests(boxes[i - 1]);
      if ((events[i].revents & ~POLLIN) != 0)  // closed on the other side
        boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(i - 1));
    }
    for (Watched& box : boxes)
      if (Clock::now() >= box.due()) look(box, progress);
    std::erase_if(boxes, [](const Watched& box) { return !box.tell; });
    if (events[0].revents != 0 && !take_order(orders, boxes)) ::_exit(0);
  }
}

}  // namespace

Lookout::~Lookout() {
  stop();
  if (progress_ != nullptr) ::munmap(progress_, sizeof *progress_);
}

// A time alone would blame a box for a machine that stood still, or for others that want all of its processors: who is
// held up waits in the kernel, and not for a processor.
bool Lookout::is_held_up_by(unsigned number, bool in_doubt) {
  constexpr Millis kPatience{2'000}, kRecent{200};
  constexpr unsigned kLooks = 100;
  const std::int64_t now = milliseconds();
  if (in_doubt) doubted_at_ = now;
  if (progress_ == nullptr || number == 0 || progress_->number != number) return false;
  const std::int64_t since = progress_->since;
  stood_ = std::exchange(stands_since_, since) == since ? stood_ + 1 : 0;
  if (stood_ < kLooks || now - since < kPatience.count() || now - doubted_at_ > kRecent.count()) return false;
  const auto stat = sys::try_read_file(fmt::format("/proc/{}/stat", pid_), 512);
  return stat && stat->find(") D ") != stat->npos;
}

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

Result<void> Lookout::start() {
  if (progress_ == nullptr) {
    void* const page = ::mmap(nullptr, sizeof *progress_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return os_error("cannot share a page with the process that watches boxes");
    progress_ = new (page) LookoutProgress;
  }
  progress_->end();
  auto [ours, theirs] = PCTX_TRY(wire::pair(SOCK_SEQPACKET));
  // What ends the process group of a supervisor must not end its limits.
  const sys::BlockedSignals blocked;
  pid_ = ::fork();
  if (pid_ == 0) run_lookout(theirs.get(), *progress_);
  if (pid_ < 0) return os_error("cannot start the process that watches the sockets and file locks of boxes");
  orders_ = std::move(ours);
  return {};
}

Result<Lookout::Watch> Lookout::watch(const Plan& plan, const Probes& probes) {
  auto [ours, theirs] = PCTX_TRY(wire::pair(SOCK_SEQPACKET));
  const bool closely = plan.watchdog.memory;
  const bool own_network = (plan.namespaces & CLONE_NEWNET) != 0;
  std::vector<int> fds{theirs.get(), probes.proc, probes.locks};
  // On the host's network sockets are everybody's: whose they are is looked up only where nothing else counts them.
  if (probes.diag >= 0 && (closely || own_network)) fds.push_back(probes.diag);
  const unsigned number = ++last_number_;
  const std::string words = fmt::format("{} {} {:d} {:d} {:d} {}", number, plan.policy.limits.memory, own_network,
                                        plan.cgroup.version == CgroupVersion::v2, closely, plan.most_received());
  int code = 0;
  // Somebody may have killed it since the last box.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!orders_) PCTX_TRY(start());
    if (wire::send(orders_.get(), words, fds)) return Watch{std::move(ours), number};
    code = errno;
    stop();
  }
  // Nothing binds a box then: it has to end.
  return os_error("the process that watches the sockets and file locks of boxes cannot be told of one", code);
}

void ask_to_look(int watched) { (void)::send(watched, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT); }

Heard hear(int watched, TreeMeter& meter, Verdict& verdict) {
  Sighting seen{};
  if (::recv(watched, &seen, sizeof seen, MSG_DONTWAIT) != sizeof seen) return Heard::nothing_more;
  if (seen.what == Sighting::figures) {
    meter.note(seen.look);
    return Heard::figures;
  }
  (seen.what == Sighting::locks ? verdict.locks_over : verdict.memory_over) = true;
  return Heard::excess;
}

std::uint64_t count_locks(int fd, std::uint64_t most) {
  std::uint64_t locks = 0;
  std::array<char, 16384> buffer;
  if (::lseek(fd, 0, SEEK_SET) != 0) return 0;
  // "1: OFDLCK ADVISORY  WRITE -1 08:01:42 0 EOF"; one that waits has "->" before its kind.
  char last = '\n', before_last = '\n';
  bool foreign = false;
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || locks > most) return locks;
    for (const char now : std::string_view{buffer.data(), static_cast<std::size_t>(got)}) {
      if (before_last == ' ' && last == '-' && now >= '0' && now <= '9') foreign = true;
      if (now == '\n' && !std::exchange(foreign, false)) ++locks;
      before_last = std::exchange(last, now);
    }
  }
}

}  // namespace pctx
