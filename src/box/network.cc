#include "box/network.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <csignal>

#include <fmt/format.h>
#include <poll.h>

#include "sys/files.h"
#include "wire/packet.h"

namespace pctx {
namespace {

constexpr auto kSoon = std::chrono::seconds{5};
constexpr unsigned kMostDeaths = 5;

// Both, one behind the other: nothing of what was told twice is counted twice, because each relay starts at zero.
void append(NetworkRecord& to, NetworkRecord&& more) {
  for (ConnectionRecord& each : more.connections) to.connections.push_back(std::move(each));
  to.left_out += more.left_out;
  to.sent += more.sent;
  to.received += more.received;
  to.complete = to.complete && more.complete;
}

// Changes with what the file says: a new inode, size or time.
std::string state_of(const char* path) {
  struct stat file {};
  if (::stat(path, &file) != 0) return "none";
  return fmt::format("{}.{}.{}.{}", file.st_ino, file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
}

// It ends with its owner, whose end of the socket it waits for.
Result<Fd> start_closer() {
  auto [ours, theirs] = PCTX_TRY(wire::pair(SOCK_SEQPACKET));
  const pid_t pid = ::fork();
  if (pid < 0) return os_error("cannot start a process that closes sockets");
  if (pid > 0) return std::move(ours);
  ::setsid();
  (void)::prctl(PR_SET_NAME, "pctx-closer");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  const int kept[] = {theirs.get()};
  sys::close_all_but(kept);
  for (;;) {
    wire::Packet packet;  // closed at the end of each round
    pollfd told{theirs.get(), POLLIN, 0};
    (void)::poll(&told, 1, -1);
    if (wire::receive(theirs.get(), packet) == wire::Received::end) ::_exit(0);
  }
}

std::string state_of_names() { return state_of("/etc/resolv.conf") + "/" + state_of("/etc/hosts"); }

}  // namespace

Result<bool> EndsReader::take(const Plan& plan, const StatusFrame& frame, FrameFds& fds) {
  const auto total = static_cast<std::size_t>(frame.value);
  std::vector<Fd*> places{&ends.dns_udp, &ends.dns_tcp};
  if ((frame.pad & kHasPacket) != 0) places.push_back(&ends.packet);
  if ((frame.pad & kHasRaw4) != 0) places.push_back(&ends.raw4);
  if ((frame.pad & kHasRaw6) != 0) places.push_back(&ends.raw6);
  const std::size_t fixed = places.size();
  if (!plan.network || frame.index != count_ || total != fixed + plan.network->ports.size())
    return os_error("the box's network is not what was asked for", EPROTO);
  for (Fd& fd : fds) {
    if (!fd) break;
    if (count_ < fixed)
      *places[count_] = std::move(fd);
    else if (count_ < total)
      ends.listeners.emplace_back(plan.network->ports[count_ - fixed], std::move(fd));
    ++count_;
  }
  return count_ >= total;
}

bool attempts_are_seen(const NetworkEnds& ends) { return ends.packet && ends.raw4; }

Result<void> RelayKeeper::start() {
  if (failure_) return *failure_;
  if (relay_) return {};
  if (serves_ == Serves::many_boxes && !closer_) closer_ = PCTX_TRY(start_closer());
  names_ = state_of_names();
  relay_ = PCTX_TRY(Relay::start());
  started_ = Clock::now();
  return {};
}

Result<std::uint32_t> RelayKeeper::add(const NetworkPolicy& policy, NetworkEnds ends) {
  PCTX_TRY(start());
  const std::uint32_t id = next_++;
  auto added = relay_->add(id, policy, ends);
  boxes_.emplace(id, Box{policy, std::move(ends), {}, {}});
  // One that has just died is replaced by `serve`, and this box is among those that the next one gets.
  const bool died = !added && (added.error().code == EPIPE || added.error().code == ECONNRESET);
  if (added || died) return id;
  boxes_.erase(id);
  return std::move(added).error();
}

void RelayKeeper::remove(std::uint32_t id, OnRecord done) {
  const auto found = boxes_.find(id);
  if (found == boxes_.end()) return done({.connections = {}, .complete = false});  // every relay has failed meanwhile
  Box& box = found->second;
  box.done = std::move(done);
  // The kernel takes milliseconds to close the last copy of this one. The relay of a single box may have it.
  if (serves_ == Serves::one_box) box.ends = {};
  if (relay_ && relay_->alive()) return relay_->remove(id);
  take_record(id, {.connections = {}, .complete = false});
}

void RelayKeeper::take_record(std::uint32_t id, NetworkRecord record) {
  const auto found = boxes_.find(id);
  if (found == boxes_.end()) return;
  Box& box = found->second;
  append(box.record, std::move(record));
  if (!box.done) return;  // its relay has died, and it has not
  const OnRecord done = std::move(box.done);
  NetworkRecord whole = std::move(box.record);
  // If it does not listen, we close it ourselves.
  if (closer_ && box.ends.packet) (void)wire::send(closer_.get(), "c", {box.ends.packet.get()});
  boxes_.erase(found);
  done(std::move(whole));
}

void RelayKeeper::serve() {
  if (!relay_) return;
  relay_->serve([this](std::uint32_t id, NetworkRecord record) { take_record(id, std::move(record)); });
  if (relay_->failure()) return fail(*relay_->failure());
  if (!relay_->alive()) replace();
}

// Only connections are lost: the ends are ours, and what waits in them the next one finds there.
void RelayKeeper::replace() {
  deaths_ = Clock::now() - started_ < kSoon ? deaths_ + 1 : 1;
  relay_.reset();
  if (deaths_ > kMostDeaths) return fail(unavailable("the relay of the network dies again and again", "report it"));
  if (auto started = start(); !started) return fail(std::move(started).error());
  for (auto& [id, box] : boxes_) {
    if (box.done) continue;
    NetworkPolicy rest = box.policy;
    if (rest.bytes) rest.bytes = *rest.bytes - std::min(*rest.bytes, box.record.sent);
    (void)relay_->add(id, rest, box.ends);
  }
  for (auto each = boxes_.begin(); each != boxes_.end();) {
    const auto next = std::next(each);
    if (each->second.done) take_record(each->first, {.connections = {}, .complete = false});
    each = next;
  }
}

void RelayKeeper::fail(Error error) {
  failure_ = std::move(error);
  relay_.reset();
  while (!boxes_.empty()) {
    const auto first = boxes_.begin();
    if (first->second.done)
      take_record(first->first, {.connections = {}, .complete = false});
    else
      boxes_.erase(first);  // closes the ends: whoever tries is refused at once
  }
}

void RelayKeeper::let_go() {
  if (relay_) (void)new Relay(*std::exchange(relay_, std::nullopt));
}

void RelayKeeper::refresh() {
  if (!relay_ || !relay_->alive()) return;
  std::string now = state_of_names();
  if (now == names_) return;
  names_ = std::move(now);
  relay_->reload_names();
}

}  // namespace pctx
