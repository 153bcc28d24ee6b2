#include "broker/broker.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <map>

#include <fmt/format.h>

#include "base/json.h"
#include "base/units.h"
#include "broker/session.h"
#include "net/door.h"
#include "sys/files.h"

namespace pctx {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kFewestWaiting = 2;
constexpr std::size_t kMostWaiting = 16;
constexpr auto kTick = std::chrono::seconds{5};
constexpr uid_t kUnmapped = 65534;  // what the kernel shows for an id that a user namespace does not have

class Broker {
 public:
  Broker(sys::Loop& loop, Fd listener, const BrokerOptions& options)
      : loop_(loop), listener_(std::move(listener)), options_(options) {
    if (options_.memory_budget == 0) options_.memory_budget = default_memory_budget();
  }

  Result<void> run();

 private:
  struct Entry {
    std::unique_ptr<Pool> pool;
    std::string family;
    std::deque<Session*> queue;
    std::size_t wanted = kFewestWaiting;
    Clock::time_point last_dry{};  // somebody found no Worker waiting
  };

  void accept();
  void read(Session& session);
  void handle(Session& session, Request request);
  void drop(Session& session);
  void release(Session& session);
  void lend_folder(Session& session, const std::string& path);
  void ask(Session& session, const PoolSpec& spec, Millis patience);
  Result<Entry*> entry_for(const PoolSpec& spec);
  void retire(const std::string& family);
  void serve_queue(const std::string& key);
  void hand_over(Session& session, Worker& worker);
  void on_exited(Worker& worker);
  void on_ended(Worker& worker);
  void on_pool_failed(const std::string& key, const Error& error);
  void finish(Session& session);
  void tick();
  void watch_relay();
  std::size_t alive() const;
  std::uint64_t memory();
  bool room(const std::string& key);
  void make_room(const std::string& key);
  std::string status() const;

  sys::Loop& loop_;
  Mover mover_{loop_};
  Lookout lookout_;
  Fd listener_;
  BrokerOptions options_;
  RelayKeeper relay_{RelayKeeper::Serves::many_boxes};
  int relay_fd_ = -1;
  sys::Loop::TimerId relay_pause_ = 0;
  std::map<int, std::unique_ptr<Session>> sessions_;
  std::map<std::string, Entry> pools_;
  std::map<const Worker*, Session*> tenants_;
  std::uint64_t memory_ = 0;  // of all pools, as of `measured_`
  Clock::time_point measured_{};
  sys::Loop::TimerId retry_ = 0;
  std::vector<std::unique_ptr<Pool>> leaving_;  // pools are not destroyed inside their own handlers
  Clock::time_point last_used_ = Clock::now();
  const Clock::time_point since_ = Clock::now();
};

Result<void> Broker::run() {
  loop_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&ends, signal);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  const Fd signals{::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK)};
  loop_.watch(signals.get(), EPOLLIN, [this](std::uint32_t) { loop_.stop(); });
  tick();
  auto result = loop_.run();
  pools_.clear();
  leaving_.clear();
  return result;
}

void Broker::accept() {
  Fd socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (!socket) return;
  ucred peer{};
  socklen_t size = sizeof peer;
  // The folder keeps others out already; a socket that was named by hand may lie anywhere. Whoever comes into a
  // container from outside through that folder, and has no id in there, is the host's root.
  const bool known = ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (!known || (peer.uid != ::geteuid() && !(options_.inside && peer.uid == kUnmapped))) return;
  auto session = std::make_unique<Session>(std::move(socket));
  Session* raw = session.get();
  sessions_.emplace(raw->fd(), std::move(session));
  loop_.watch(raw->fd(), EPOLLIN, [this, raw](std::uint32_t) { read(*raw); });
}

void Broker::read(Session& session) {
  wire::Packet packet;
  const wire::Received received = wire::receive(session.fd(), packet);
  if (received == wire::Received::nothing) return;
  if (received != wire::Received::packet) return drop(session);
  last_used_ = Clock::now();
  auto request = parse_request(packet.text);
  if (!request) {
    (void)session.send_error("usage", request.error());
    return drop(session);
  }
  handle(session, *std::move(request));
}

void Broker::handle(Session& session, Request request) {
  if (request.stop) return loop_.stop();
  if (request.status) {
    (void)session.send(status());
    return;
  }
  if (request.mount) lend_folder(session, *request.mount);
  if (request.start && session.worker != nullptr) {
    loop_.cancel(session.patience);
    session.started = true;
    session.worker->start_call(request.timeout);
  } else if (request.start && !session.report.empty()) {
    (void)session.send_report(std::exchange(session.report, {}));  // it ended before its start was announced
  }
  if (request.done && session.worker != nullptr) {
    session.worker->kill();
    session.done = true;
    // A call that was over before its start was worth a message: nobody waits to hear how its Worker ended.
    if (!session.started) release(session);
  }
  if (!request.lease) return;
  if (session.phase == Session::Phase::waiting || (session.worker != nullptr && !session.done)) {
    (void)session.send_error("usage", usage_error("this connection has a lease already", "open another one"));
    return drop(session);
  }
  if (session.worker != nullptr)
    session.next = std::move(request.lease_text);  // what is owed for this one comes first
  else
    ask(session, *request.lease, request.queue_timeout);
}

void Broker::lend_folder(Session& session, const std::string& path) {
  if (session.worker == nullptr)
    return (void)session.send_error("gone", unavailable("the Worker has ended", "try again"));
  // By the Worker and not by the session, which may be gone when the answer comes.
  const Worker* worker = session.worker;
  // Another Worker, of a pool that can lend folders, is as good: nothing has run.
  const auto kind = [](const Error& error) { return error.code == EPIPE ? "gone" : "usage"; };
  auto ordered = session.worker->lend_folder(path, [this, worker, kind](const Result<void>& lent) {
    const auto found = tenants_.find(worker);
    if (found == tenants_.end()) return;
    if (lent)
      (void)found->second->send(R"({"mounted": {}})");
    else
      (void)found->second->send_error(kind(lent.error()), lent.error());
  });
  if (!ordered) (void)session.send_error(kind(ordered.error()), ordered.error());
}

void Broker::release(Session& session) {
  loop_.cancel(session.patience);
  tenants_.erase(session.worker);
  session.worker = nullptr;
  session.phase = Session::Phase::idle;
}

void Broker::drop(Session& session) {
  loop_.forget(session.fd());
  loop_.cancel(session.patience);
  if (session.worker != nullptr) {
    session.worker->kill();
    release(session);
  }
  if (const auto found = pools_.find(session.pool); found != pools_.end()) std::erase(found->second.queue, &session);
  sessions_.erase(session.fd());
}

Result<Broker::Entry*> Broker::entry_for(const PoolSpec& spec) {
  const std::string key = spec.key();
  if (const auto found = pools_.find(key); found != pools_.end()) return &found->second;
  retire(spec.family());
  Entry entry;
  entry.family = spec.family();
  entry.pool = PCTX_TRY(Pool::start(loop_, mover_, lookout_, relay_, spec,
                                    {.available = [this, key] { serve_queue(key); },
                                     .exited = [this](Worker& worker) { on_exited(worker); },
                                     .ended = [this](Worker& worker) { on_ended(worker); },
                                     .failed = [this, key](const Error& error) { on_pool_failed(key, error); },
                                     .room = [this, key] { return room(key); }}));
  watch_relay();
  return &pools_.emplace(key, std::move(entry)).first->second;
}

// What changed on disk has another generation from here on: nobody asks for the one before again, and its Workers would
// take the room of others until they are found to be idle.
void Broker::retire(const std::string& family) {
  for (auto entry = pools_.begin(); entry != pools_.end();) {
    if (entry->second.family != family || !entry->second.queue.empty()) {
      ++entry;
      continue;
    }
    entry->second.pool->want(0);
    leaving_.push_back(std::move(entry->second.pool));
    entry = pools_.erase(entry);
  }
}

// The one relay of all pools. It starts with the first one that has an allow-list, and may be another one after
// `serve`.
void Broker::watch_relay() {
  loop_.cancel(relay_pause_);
  if (const auto due = relay_.due())
    relay_pause_ = loop_.at(*due, [this] {
      relay_pause_ = 0;
      relay_.serve();
      watch_relay();
    });
  if (relay_.fd() == relay_fd_) return;
  loop_.forget(relay_fd_);
  relay_fd_ = relay_.fd();
  if (relay_fd_ < 0) return;
  loop_.watch(relay_fd_, EPOLLIN, [this](std::uint32_t) {
    const int before = relay_fd_;
    loop_.forget(before);  // it may be closed, and its number taken by the next one
    relay_fd_ = -1;
    relay_.serve();
    watch_relay();
  });
}

void Broker::ask(Session& session, const PoolSpec& spec, Millis patience) {
  auto entry = entry_for(spec);
  if (!entry) {
    const ErrorKind kind = entry.error().kind;
    (void)session.send_error(kind == ErrorKind::usage         ? "usage"
                             : kind == ErrorKind::unavailable ? "unavailable"
                                                              : "startup",
                             entry.error());
    return;
  }
  session.pool = spec.key();
  Entry& pool = **entry;
  if (Worker* worker = pool.pool->take(); worker != nullptr && pool.queue.empty()) return hand_over(session, *worker);
  std::size_t queued = 0;
  for (const auto& [key, each] : pools_) queued += each.queue.size();
  if (queued >= options_.max_queue) {
    (void)session.send_error("queue", unavailable(fmt::format("{} callers wait already", queued),
                                                  "call less at once, or wait for earlier calls to end"));
    return;
  }
  pool.last_dry = Clock::now();
  pool.wanted = std::clamp(pool.wanted * 2, kFewestWaiting, kMostWaiting);
  session.phase = Session::Phase::waiting;
  pool.queue.push_back(&session);
  pool.pool->want(pool.wanted);
  if (pool.queue.size() > 1) (void)session.send(Json{{"queued", {{"ahead", pool.queue.size() - 1}}}}.dump());
  session.patience = loop_.after(patience, [this, &session] {
    session.patience = 0;
    session.phase = Session::Phase::idle;
    if (const auto found = pools_.find(session.pool); found != pools_.end()) std::erase(found->second.queue, &session);
    (void)session.send_error(
        "queue", unavailable("no Worker became free in time", "raise queue_timeout_sec, or call less at once"));
  });
}

void Broker::serve_queue(const std::string& key) {
  const auto found = pools_.find(key);
  if (found == pools_.end()) return;
  Entry& entry = found->second;
  while (!entry.queue.empty()) {
    Worker* worker = entry.pool->take();
    if (worker == nullptr) return;
    Session& session = *entry.queue.front();
    entry.queue.pop_front();
    hand_over(session, *worker);
  }
}

void Broker::hand_over(Session& session, Worker& worker) {
  loop_.cancel(session.patience);
  session.phase = Session::Phase::leased;
  session.worker = &worker;
  session.started = session.done = session.told = false;
  session.report.clear();
  tenants_[&worker] = &session;
  const Worker::Lease lease = worker.lease();
  const bool sent = session.send(R"({"leased": {}})", {lease.socket, lease.out, lease.err});
  worker.handed_over();
  if (!sent) return worker.kill();
  session.patience = loop_.after(options_.unused_lease, [&session] {
    session.patience = 0;
    if (session.worker != nullptr) session.worker->kill();
  });
  // The next one is made while this one works.
  if (const auto found = pools_.find(session.pool); found != pools_.end())
    found->second.pool->want(found->second.wanted);
}

std::string ended_message(const Worker& worker) {
  return fmt::format(R"({{"ended": {}}})", report_json(worker.ending(), false, -1));
}

// Its box is killed next, which takes the kernel longer than most scripts run: whoever waits for the end of one need
// not wait for that, if it can tell nothing new.
void Broker::on_exited(Worker& worker) {
  const auto found = tenants_.find(&worker);
  if (found == tenants_.end() || !found->second->started || !worker.all_known()) return;
  found->second->told = found->second->send_report(ended_message(worker));
}

void Broker::on_ended(Worker& worker) {
  // Whoever waits for want of room, in whatever pool, may have it now: once this one is out of its pool's list.
  if (retry_ == 0)
    retry_ = loop_.after(Millis{1}, [this] {
      retry_ = 0;
      for (auto& [key, entry] : pools_)
        if (!entry.queue.empty()) entry.pool->want(entry.wanted);
    });
  const auto found = tenants_.find(&worker);
  if (found == tenants_.end()) return;
  Session& session = *found->second;
  tenants_.erase(found);
  session.report = session.told ? "" : ended_message(worker);
  if (session.started && !session.told) (void)session.send_report(std::exchange(session.report, {}));
  finish(session);
}

void Broker::finish(Session& session) {
  loop_.cancel(session.patience);
  session.worker = nullptr;
  session.phase = Session::Phase::idle;
  if (session.next.empty()) return;
  const std::string text = fmt::format(R"({{"lease": {}}})", std::exchange(session.next, {}));
  if (auto request = parse_request(text); request && request->lease)
    ask(session, *request->lease, request->queue_timeout);
}

void Broker::on_pool_failed(const std::string& key, const Error& error) {
  const auto found = pools_.find(key);
  if (found == pools_.end()) return;
  for (Session* session : found->second.queue) {
    loop_.cancel(session->patience);
    session->phase = Session::Phase::idle;
    (void)session->send_error("startup", error);
  }
  found->second.queue.clear();
  // The next caller starts afresh. Workers that run go on until this one is let go.
  leaving_.push_back(std::move(found->second.pool));
  pools_.erase(found);
}

std::size_t Broker::alive() const {
  std::size_t count = 0;
  for (const auto& [key, entry] : pools_) count += entry.pool->size();
  return count;
}

std::uint64_t Broker::memory() {
  constexpr auto kFresh = std::chrono::milliseconds{200};
  if (Clock::now() - measured_ < kFresh) return memory_;
  measured_ = Clock::now();
  memory_ = 0;
  for (const auto& [key, entry] : pools_) memory_ += entry.pool->memory();
  return memory_;
}

// One more Worker for the pool `key`. Nobody waits for ever: a pool that has none gets its first one, if another pool
// has some that nobody needs.
bool Broker::room(const std::string& key) {
  const std::size_t count = alive();
  if (count == 0 || (count < options_.max_workers && memory() < options_.memory_budget)) {
    memory_ += Worker::kMemoryAtFirst;  // of the next one, until all are looked at again
    return true;
  }
  make_room(key);
  return false;
}

// The Workers of the pool that was used least lately go, when somebody waits for one of another pool. They end soon,
// and with the next tick whoever waits is looked after.
void Broker::make_room(const std::string& key) {
  if (const auto asking = pools_.find(key); asking == pools_.end() || asking->second.queue.empty()) return;
  Entry* least = nullptr;
  for (auto& [other, entry] : pools_)
    if (other != key && entry.queue.empty() && entry.pool->waiting() > 0 &&
        (least == nullptr || entry.pool->last_used() < least->pool->last_used()))
      least = &entry;
  if (least == nullptr) return;
  least->wanted = 0;
  least->pool->want(0);
}

void Broker::tick() {
  const auto now = Clock::now();
  relay_.refresh();
  watch_relay();  // a Worker may have made it start, or wait for its return
  std::erase_if(leaving_, [](const auto& pool) { return pool->idle(); });
  for (auto entry = pools_.begin(); entry != pools_.end();) {
    Entry& each = entry->second;
    if (!each.queue.empty()) each.pool->want(each.wanted);  // another pool may have made room
    if (each.pool->idle() && each.queue.empty() && now - each.pool->last_used() > options_.idle_pool) {
      entry = pools_.erase(entry);
      continue;
    }
    if (each.wanted > kFewestWaiting && now - each.last_dry > kTick) {
      each.wanted = std::max(kFewestWaiting, each.wanted / 2);
      each.pool->want(each.wanted);
    }
    ++entry;
  }
  // A caller that lives and keeps a connection is no call: it finds the next Broker by itself.
  const bool idle = std::none_of(sessions_.begin(), sessions_.end(), [](const auto& each) {
    return each.second->phase == Session::Phase::waiting || (each.second->worker != nullptr && each.second->started);
  });
  if (idle && now - last_used_ > options_.idle_exit) return loop_.stop();
  (void)loop_.after(kTick, [this] { tick(); });
}

std::string Broker::status() const {
  Json json{{"pid", ::getpid()},
            {"sessions", sessions_.size()},
            {"memory_budget", options_.memory_budget},
            {"relay", !options_.inside || net::is_without_door() || net::door_is_open()},
            {"seconds", std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - since_).count()},
            {"pools", Json::array()}};
  for (const auto& [key, entry] : pools_) {
    const PoolFigures figures = entry.pool->figures();
    const Json spec = Json::parse(key);
    json["pools"].push_back({{"python", spec["python"]},
                             {"environment", spec["environment"]},
                             {"preloaded", figures.preloaded},
                             {"left_to_workers", figures.left},
                             {"waiting", figures.waiting},
                             {"making", figures.making},
                             {"busy", figures.busy},
                             {"queued", entry.queue.size()},
                             {"forked", figures.forked},
                             {"calls", figures.calls}});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::uint64_t default_memory_budget() {
  struct sysinfo machine {};
  std::uint64_t bytes = ::sysinfo(&machine) == 0 ? std::uint64_t{machine.totalram} * machine.mem_unit : 4_GiB;
  for (const char* limit : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
    if (const auto text = sys::try_read_file(limit, 64)) {
      std::uint64_t value = 0;
      if (std::from_chars(text->data(), text->data() + text->size(), value).ec == std::errc{} && value > 0)
        bytes = std::min(bytes, value);
    }
  return bytes / 2;
}

Result<void> serve(Fd listener, const BrokerOptions& options) {
  sys::Loop loop = PCTX_TRY(sys::Loop::make());
  return Broker{loop, std::move(listener), options}.run();
}

}  // namespace pctx
