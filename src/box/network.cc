#include "box/network.h"

#include <sys/stat.h>

#include <algorithm>

#include <fmt/format.h>

#include "net/name_table.h"

namespace pctx {
namespace {

constexpr auto kSoon = std::chrono::seconds{5};
constexpr auto kUntilRetry = std::chrono::seconds{10};
constexpr const char* kRefused = "the relay has no descriptors for this box; raise the limit 'nofile' (ulimit -Hn)";
constexpr unsigned kMostDeaths = 5;  // of the relay of a single box, whose end this is

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

// None for the first deaths, which a machine out of memory may cause; then growing ones. A relay that dies again and
// again costs its boxes their connections, and the owner no more than this.
std::chrono::milliseconds pause_after(unsigned deaths) {
  constexpr unsigned kAtOnce = 3, kMostDoublings = 7;
  constexpr std::chrono::milliseconds kFirst{100};  // 12.8 s in the end
  return deaths <= kAtOnce ? std::chrono::milliseconds{0}
                           : kFirst * (1U << std::min(deaths - kAtOnce - 1, kMostDoublings));
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
  if (relay_) return {};
  if (failure_) {
    if (serves_ == Serves::one_box || Clock::now() < returns_) return *failure_;
    failure_.reset();
  }
  if (Clock::now() < returns_) return {};  // in a pause, after which `serve` starts it
  if (serves_ == Serves::many_boxes) PCTX_TRY(closer_.start());
  names_ = state_of_names();
  relay_ = PCTX_TRY(Relay::start());
  started_ = Clock::now();
  return {};
}

std::optional<RelayKeeper::Clock::time_point> RelayKeeper::due() const {
  return relay_ || failure_ || boxes_.empty() ? std::nullopt : std::optional{returns_};
}

Result<std::uint32_t> RelayKeeper::add(const NetworkPolicy& policy, NetworkEnds ends) {
  PCTX_TRY(start());
  const std::uint32_t id = next_++;
  auto added = relay_ ? relay_->add(id, policy, ends) : Result<void>{};
  boxes_.emplace(id, Box{policy, std::move(ends), {}, {}, {}, false});
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
  close(box);
  boxes_.erase(found);
  done(std::move(whole));
}

// Whoever tries is refused at once from here on.
void RelayKeeper::close(Box& box) {
  if (box.ends.packet) closer_.close(box.ends.packet.get());
  box.ends = {};
}

void RelayKeeper::take_name(std::uint32_t id, std::size_t number, std::string name) {
  const auto found = boxes_.find(id);
  // In their order, each once; a relay that was taken over can say anything, and gets no more than this.
  if (found == boxes_.end() || number != found->second.known.size() || number >= net::NameTable::kMost) return;
  found->second.known.push_back(std::move(name));
}

void RelayKeeper::take_refusal(std::uint32_t id) {
  const auto found = boxes_.find(id);
  if (found == boxes_.end()) return;
  close(found->second);
  found->second.refused = true;
  append(found->second.record, {.connections = {{.transport = "tcp", .reason = kRefused}}, .complete = false});
}

void RelayKeeper::serve() {
  if (!relay_) {
    if (const auto when = due(); when && Clock::now() >= *when) revive();
    return;
  }
  relay_->serve({.record = [this](std::uint32_t id, NetworkRecord record) { take_record(id, std::move(record)); },
                 .named = [this](std::uint32_t id, std::size_t number,
                                 std::string name) { take_name(id, number, std::move(name)); },
                 .refused = [this](std::uint32_t id) { take_refusal(id); }});
  if (relay_->failure()) return fail(*relay_->failure());
  if (!relay_->alive()) replace();
}

// Only connections are lost: the ends are ours, and what waits in them the next one finds there.
void RelayKeeper::replace() {
  deaths_ = Clock::now() - started_ < kSoon ? deaths_ + 1 : 1;
  relay_.reset();
  for (auto each = boxes_.begin(); each != boxes_.end();) {
    const auto next = std::next(each);
    if (each->second.done) take_record(each->first, {.connections = {}, .complete = false});
    each = next;
  }
  if (serves_ == Serves::one_box && deaths_ > kMostDeaths)
    return fail(unavailable("the relay of the network dies again and again", "report it"));
  returns_ = Clock::now() + (serves_ == Serves::one_box ? std::chrono::milliseconds{0} : pause_after(deaths_));
  if (Clock::now() >= returns_) revive();
}

void RelayKeeper::revive() {
  if (auto started = start(); !started) {
    if (serves_ == Serves::one_box) return fail(std::move(started).error());
    returns_ = Clock::now() + pause_after(++deaths_);
    return;
  }
  for (auto& [id, box] : boxes_) {
    if (box.done || box.refused) continue;
    NetworkPolicy rest = box.policy;
    if (rest.bytes) rest.bytes = *rest.bytes - std::min(*rest.bytes, box.record.sent);
    (void)relay_->add(id, rest, box.ends, box.known);
  }
}

// It said itself why it cannot serve, and the next one would say the same; after a while it may be different.
void RelayKeeper::fail(Error error) {
  failure_ = std::move(error);
  returns_ = Clock::now() + kUntilRetry;
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
