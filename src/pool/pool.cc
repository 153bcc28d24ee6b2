#include "pool/pool.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <csignal>

#include <fmt/format.h>

#include "base/json.h"
#include "launch/binder.h"
#include "launch/lend.h"
#include "pool/inspect.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

constexpr std::uint64_t kForksOfOneZygote = 10'000;
constexpr auto kAgeOfOneZygote = std::chrono::hours{1};
constexpr unsigned kFailuresInARow = 3;
constexpr auto kImportPatience = std::chrono::seconds{30};  // for one package
constexpr auto kForkPatience = std::chrono::seconds{30};
constexpr auto kPauseOfLooks = std::chrono::seconds{1};
// Somebody may have killed a Zygote, whose descriptors go before it has ended: then they say nothing about its packages.
constexpr Millis kMomentToEnd{100};

// The last lines that a dead Zygote printed. They are for people: cut, and made harmless by whoever shows them.
std::string last_words(int pipe) {
  std::string text(65536, '\0');
  const ssize_t got = ::read(pipe, text.data(), text.size());
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  constexpr std::size_t kEnough = 600;
  if (text.size() > kEnough) text.erase(0, text.size() - kEnough);
  return text.empty() ? "it said nothing" : text;
}

Error talks_out_of_turn() {
  return unavailable("the Zygote sends what nobody asked for", "a package that it imports writes to its descriptors");
}

}  // namespace

Result<std::unique_ptr<Pool>> Pool::start(sys::Loop& loop, Mover& mover, Lookout& lookout, RelayKeeper& relay,
                                          const PoolSpec& spec, Listener listener) {
  Policy policy = spec.policy;
  if (policy.network == Network::host && !spec.scripts)
    return usage_error("a Worker has no network of the host's", "leave 'network' out of the policy");
  lend_support(spec, policy);
  CompileInputs inputs;
  inputs.pool = true;
  inputs.folder = spec.folder;
  Plan plan = PCTX_TRY(compile_here(policy, std::move(inputs)));
  if (plan.network) PCTX_TRY(relay.start());
  std::unique_ptr<Pool> pool{new Pool(loop, mover, lookout, relay, std::move(plan), std::move(listener))};
  // Forks and imports take their Zygote's own time, of which no call may use up the rest.
  std::erase_if(pool->plan_.rlimits, [](const ResourceLimit& limit) { return limit.resource == RLIMIT_CPU; });
  // Every process below the maker counts for the Zygote's own fork; Workers get theirs when they are made.
  for (ResourceLimit& limit : pool->plan_.rlimits)
    if (limit.resource == RLIMIT_NPROC) limit.value = kMostWorkers * (pool->plan_.policy.limits.pids + 2);
  for (LimitBinding& binding : pool->plan_.bindings)
    if (binding.limit == "cpu_time") binding.by = "watchdog";
  pool->preload_ = spec.preload;
  pool->scripts_ = spec.scripts;
  pool->command_ = zygote_command(spec);
  pool->maker_ = PCTX_TRY(start_maker(pool->plan_, pool->command_));
  Pool* self = pool.get();
  loop.watch(self->maker_.control.get(), EPOLLIN, [self](std::uint32_t) { self->on_maker(); });
  self->patience_ = loop.after(kImportPatience, [self] {
    self->fail(unavailable("the maker of this pool's boxes was not ready in time", "see 'pctx-sandbox doctor'"));
  });
  self->look_at_waiting();
  return pool;
}

Pool::~Pool() {
  loop_.cancel(sweep_);
  loop_.cancel(report_);
  loop_.cancel(patience_);
  loop_.cancel(look_);
  workers_.clear();
  end_zygote();
  loop_.forget(maker_.control.get());
  if (maker_.pidfd) {
    // Everything in the pool lives below the maker's pid namespace.
    (void)abi::pidfd_send_signal(maker_.pidfd.get(), SIGKILL);
    (void)::waitpid(maker_.pid, nullptr, __WALL);
  }
}

void Pool::fail(Error error) {
  if (std::exchange(failed_, true)) return;
  loop_.cancel(patience_);
  end_zygote();
  // Later: whoever called us may hold a reference into the list that we are taken out of.
  report_ = loop_.after({}, [this, error = std::move(error)] { listener_.failed(error); });
}

// Without any package a Zygote runs nothing but our own code. Each Worker then imports what it needs, in its own box.
void Pool::leave_to_workers(const Error& error) {
  if (std::exchange(left_all_, true) || preload_.empty()) return fail(error);
  for (const std::string& name : preload_) left_.try_emplace(name, error.what);
  failures_ = 0;
  restart_zygote();
}

void Pool::on_maker() {
  StatusFrame frame{};
  FrameFds fds;
  const FrameRead read = read_frame(maker_.control.get(), frame, fds);
  if (read == FrameRead::nothing) return;
  if (read == FrameRead::end) {
    loop_.forget(maker_.control.get());
    // It took all boxes along, and nobody else will tell.
    for (const auto& each : workers_) each->on_reaped({});
    return fail(unavailable("the maker of this pool's boxes has ended", "try again; see 'pctx-sandbox doctor'"));
  }
  const auto worker = [&]() -> Worker* {
    for (const auto& entry : workers_)
      if (entry->tag() == frame.index) return entry.get();
    return nullptr;
  };
  switch (frame.kind) {
    case Message::failure:
      return fail(describe_failure(frame, plan_, command_));
    case Message::binder:
      // Whoever made it cannot make another. Workers that are lent go on.
      folders_.listen(std::move(fds[0]), [this] { fail(binder_ended()); });
      break;
    case Message::ready:
      if (auto cut = cut_zygote(); !cut) return fail(std::move(cut).error());
      break;
    case Message::cut:
      if (frame.index == kZygoteTag) {
        if (!fds[0]) return fail(os_error("cannot make the Zygote's box", frame.value));
        zygote_.pidfd = std::move(fds[0]);
        if (const int directory = cgroups_.empty() ? -1 : cgroups_.back().directory(); directory >= 0)
          if (const auto pid = pid_of(zygote_.pidfd.get()); pid)
            if (auto moved = sys::write_at(directory, "cgroup.procs", std::to_string(*pid)); !moved)
              return fail(std::move(moved).error());
        loop_.watch(zygote_.pidfd.get(), EPOLLIN, [this](std::uint32_t) { on_zygote_end(); });
        weigh_zygote();
      } else if (Worker* found = worker()) {
        found->on_cut(std::move(fds[0]), frame.value);
      } else if (fds[0]) {
        (void)abi::pidfd_send_signal(fds[0].get(), SIGKILL);  // given up while it was made
      }
      break;
    case Message::blinded:
      // Answers come in order: those before the last are about Zygotes that are gone.
      if (--blindings_ > 0 || !zygote_.blinding) break;
      if (frame.value != 0) return fail(unavailable("the Zygote could not be blinded", "see 'pctx-sandbox doctor'"));
      zygote_.ready = true;
      end_strays(maker_.pid, zygote_.pid);
      fill();
      return fork_next();
    case Message::spent:
    case Message::orphan: {
      const pid_t pid = (static_cast<pid_t>(frame.pad) << 16) | frame.index;
      const auto known =
          std::find_if(workers_.begin(), workers_.end(), [&](const auto& each) { return each->pid_below() == pid; });
      if (frame.kind == Message::spent) {
        if (known != workers_.end()) (*known)->on_spent(Millis{frame.value});
        break;
      }
      if (known != workers_.end()) {
        (*known)->on_exit(frame.value);
        listener_.exited(**known);
        (*known)->kill();  // what it left behind in its box goes with the box's init
        break;
      }
      unknown_ended_ = true;
      for (const auto& each : workers_) each->look();
      break;
    }
    case Message::reaped:
      if (frame.index == kZygoteTag && !cgroups_.empty()) cgroups_.pop_front();
      if (Worker* found = worker())
        found->on_reaped(frame.pad != 0 ? std::optional{Millis{frame.value}} : std::nullopt);
      break;
    default:
      break;
  }
}

Result<void> Pool::cut_zygote() {
  auto [status, their_status] = PCTX_TRY(wire::pair(SOCK_SEQPACKET));
  auto [control, their_control] = PCTX_TRY(wire::pair(SOCK_SEQPACKET));
  auto [heard, spoken] = PCTX_TRY(sys::make_pipe(O_NONBLOCK));
  BoxCgroup cgroup = PCTX_TRY(BoxCgroup::make(limits_of_zygote(plan_), unique_cgroup_name(kZygoteTag)));
  const std::vector<Fd> tasks = PCTX_TRY(cgroup.open_tasks());
  CutOrder order{.zygote = true,
                 .tag = kZygoteTag,
                 .status = their_status.get(),
                 .in = their_control.get(),
                 .out = spoken.get(),
                 .err = spoken.get()};
  for (const Fd& fd : tasks) order.tasks.push_back(fd.get());
  PCTX_TRY(order_cut(maker_, order));
  zygote_ = {};
  cgroups_.push_back(std::move(cgroup));
  zygote_.status = std::move(status);
  zygote_.control = std::move(control);
  zygote_.words = std::move(heard);
  zygote_.their_control = std::move(their_control);
  zygote_.their_words = std::move(spoken);
  zygote_.since = Clock::now();
  if (!wire::send(zygote_.control.get(), Json{{"left", left_}}.dump(-1, ' ', false, Json::error_handler_t::replace)))
    return os_error("cannot talk to the Zygote");
  wait_for_import();
  loop_.watch(zygote_.status.get(), EPOLLIN, [this](std::uint32_t) { on_zygote_status(); });
  loop_.watch(zygote_.control.get(), EPOLLIN, [this](std::uint32_t) { on_zygote_message(); });
  return {};
}

void Pool::end_zygote() {
  loop_.forget(zygote_.status.get());
  loop_.forget(zygote_.control.get());
  loop_.forget(zygote_.pidfd.get());
  if (zygote_.pidfd) (void)abi::pidfd_send_signal(zygote_.pidfd.get(), SIGKILL);
  zygote_ = {};
  forking_ = false;
  loop_.cancel(patience_);
  loop_.cancel(weigh_);
}

void Pool::wait_for_import() {
  loop_.cancel(patience_);
  patience_ = loop_.after(kImportPatience, [this] {
    if (importing_.empty())
      return fail(unavailable("the Zygote was not ready in time", "look for what hangs when its Python starts"));
    left_[importing_] = "its import takes too long";
    restart_zygote();
  });
}

// Where no cgroup binds its memory we look ourselves; too much of it ends it like any other end at import.
void Pool::weigh_zygote() {
  constexpr Millis kPause{20};
  loop_.cancel(weigh_);
  if (!plan_.watchdog.memory || !zygote_.pidfd) return;
  const auto pid = pid_of(zygote_.pidfd.get());
  if (pid && resident_memory(*pid) > memory_of_zygote(plan_))
    (void)abi::pidfd_send_signal(zygote_.pidfd.get(), SIGKILL);
  weigh_ = loop_.after(zygote_.ready ? kPause * 50 : kPause, [this] { weigh_zygote(); });
}

// Whoever waits is looked at before it is lent and after each fork, and code of a package may run in between. It has no
// call whose limits would count what it holds.
void Pool::look_at_waiting() {
  look_ = loop_.after(kPauseOfLooks, [this] { look_at_waiting(); });
  const bool zygote_waits = zygote_.ready && !forking_;
  const bool still =
      (!zygote_waits || zygote_waits_still(zygote_.pid, maker_.pid)) &&
      std::all_of(workers_.begin(), workers_.end(), [](const auto& each) { return each->waits_still(); });
  if (still || failed_) return;
  for (const auto& worker : workers_)
    if (worker->state() == Worker::State::waiting) worker->discard();
  leave_to_workers(unavailable("a package opens descriptors or starts processes while nobody calls it",
                               "report it if you trust it"));
}

void Pool::restart_zygote() {
  end_zygote();
  importing_.clear();
  // Workers that wait are whole; a fork that was under way is not.
  for (const auto& worker : workers_)
    if (worker->state() == Worker::State::forking || worker->state() == Worker::State::warming) worker->discard();
  to_fork_.clear();
  if (auto cut = cut_zygote(); !cut) fail(std::move(cut).error());
}

void Pool::on_zygote_status() {
  StatusFrame frame{};
  FrameFds fds;
  const FrameRead read = read_frame(zygote_.status.get(), frame, fds);
  if (read == FrameRead::frame && frame.kind == Message::failure) return fail(describe_failure(frame, plan_, command_));
  if (read == FrameRead::frame && frame.kind == Message::listener) {
    denials_.add(std::move(fds[0]));
    return;
  }
  if (read == FrameRead::end) loop_.forget(zygote_.status.get());  // it has become Python
}

DenialBook* Pool::book_of(pid_t pid) {
  const PidNamespace place = pid_namespace(pid);
  for (const auto& worker : workers_)
    if (worker->holds(place)) return &worker->denials();
  return nullptr;  // a Zygote's own
}

void Pool::on_zygote_end() {
  if (zygote_.status) on_zygote_status();
  if (failed_) return;
  const std::string words = last_words(zygote_.words.get());
  if (!zygote_.ready && !importing_.empty()) {
    left_[importing_] =
        fmt::format("its import ended the Zygote: {}", words.substr(0, words.find_last_not_of('\n') + 1));
    return restart_zygote();
  }
  const Error error = unavailable(fmt::format("the Zygote ended while it imported or forked: {}", words),
                                  "import the packages in a box to see why: pctx-sandbox run -- python3 -c 'import …'");
  if (++failures_ >= kFailuresInARow) return zygote_.ready ? leave_to_workers(error) : fail(error);
  restart_zygote();
}

void Pool::on_zygote_message() {
  wire::Packet packet;
  const wire::Received received = wire::receive(zygote_.control.get(), packet);
  if (received == wire::Received::nothing) return;
  if (received != wire::Received::packet) return loop_.forget(zygote_.control.get());  // its status tells the rest
  if (!zygote_.ready) {
    // The name of what it imports next; in order, so that nobody buys time by going round.
    const auto now = std::find(preload_.begin(), preload_.end(), importing_);
    const auto from = now == preload_.end() ? preload_.begin() : now + 1;
    if (const auto name = std::find(from, preload_.end(), packet.text); name != preload_.end()) {
      importing_ = *name;
      return wait_for_import();
    }
    if (!packet.text.starts_with(R"({"ready")")) return leave_to_workers(talks_out_of_turn());
    loop_.cancel(patience_);
    importing_.clear();
    take_figures(packet.text, figures_);
    if (const auto pid = pid_of(zygote_.pidfd.get())) zygote_.pid = *pid;
    if (std::exchange(zygote_.blinding, true)) return leave_to_workers(talks_out_of_turn());
    ++blindings_;
    if (auto blinding = order_blinding(maker_); !blinding) fail(std::move(blinding).error());
    return;
  }
  if (!forking_ || to_fork_.empty()) return leave_to_workers(talks_out_of_turn());
  int error = 0;
  (void)std::from_chars(packet.text.data(), packet.text.data() + packet.text.size(), error);
  const std::uint16_t tag = to_fork_.front();
  to_fork_.pop_front();
  forking_ = false;
  ++zygote_.forks;
  ++figures_.forked;
  // Before anybody is lent what it forked: from here on it can no longer get there.
  loop_.cancel(patience_);
  const int given[] = {zygote_.their_control.get(), zygote_.their_words.get(), zygote_.their_words.get()};
  if (auto clean = inspect_zygote(zygote_.pid, maker_.pid, {std::begin(given), std::end(given)}); !clean)
    return ends_within(zygote_.pidfd.get(), kMomentToEnd) ? void() : leave_to_workers(clean.error());
  for (const auto& worker : workers_)
    if (worker->tag() == tag) {
      worker->on_forked(error);
      if (std::exchange(unknown_ended_, false)) worker->look();
      break;
    }
  fork_next();
}

void Pool::fork_next() {
  while (zygote_.ready && !forking_ && !to_fork_.empty()) {
    const auto found = std::find_if(workers_.begin(), workers_.end(),
                                    [&](const auto& worker) { return worker->tag() == to_fork_.front(); });
    if (found == workers_.end() || (*found)->state() != Worker::State::forking) {
      to_fork_.pop_front();
      continue;
    }
    auto order = (*found)->fork_order();
    if (!order) {
      to_fork_.pop_front();
      (*found)->kill();
      continue;
    }
    const int namespaces = plan_.policy.network == Network::host ? 6 : 7;
    forking_ = wire::send(zygote_.control.get(), fmt::format("F{}", namespaces), *order);
    if (!forking_) {
      const Error error = unavailable("the Zygote does not listen", "try again");
      return ++failures_ >= kFailuresInARow ? leave_to_workers(error) : restart_zygote();
    }
    patience_ = loop_.after(kForkPatience, [this] {
      leave_to_workers(unavailable("the Zygote hangs", "report the package that it imports, if you trust it"));
    });
  }
}

void Pool::want(std::size_t waiting) {
  wanted_ = waiting;
  std::size_t coming = 0;
  for (const auto& worker : workers_)
    if (worker->state() == Worker::State::waiting && !worker->discarded() && ++coming > wanted_) worker->discard();
  fill();
}

void Pool::fill() {
  if (!zygote_.ready || failed_) return;
  if (to_fork_.empty() && !forking_ &&
      (zygote_.forks >= kForksOfOneZygote || Clock::now() - zygote_.since > kAgeOfOneZygote)) {
    end_zygote();
    if (auto cut = cut_zygote(); !cut) fail(std::move(cut).error());
    return;
  }
  std::size_t coming = 0;
  for (const auto& worker : workers_)
    if (worker->state() <= Worker::State::waiting) ++coming;
  for (; coming < wanted_ && listener_.room(); ++coming) add_worker();
}

void Pool::add_worker() {
  do {
    if (++next_tag_ <= kZygoteTag) next_tag_ = kZygoteTag + 1;
  } while (std::any_of(workers_.begin(), workers_.end(), [&](const auto& w) { return w->tag() == next_tag_; }));
  const Worker::Surroundings around{relay_,
                                    maker_.pid,
                                    [this] {
                                      std::set<pid_t> known{zygote_.pid};
                                      for (const auto& each : workers_) known.insert({each->init(), each->pid()});
                                      return known;
                                    },
                                    [this] { return zygote_.pid; },
                                    mover_,
                                    inspector_,
                                    lookout_,
                                    folders_,
                                    scripts_ ? 1U : 0U};
  auto worker =
      std::make_unique<Worker>(loop_, plan_, next_tag_, around, [this](Worker& changed) { on_change(changed); });
  if (auto cut = worker->cut(maker_); !cut) return fail(std::move(cut).error());
  workers_.push_back(std::move(worker));
}

Worker* Pool::take() {
  last_used_ = Clock::now();
  if (failed_) return nullptr;
  for (const auto& worker : workers_)
    if (worker->state() == Worker::State::waiting && !worker->discarded() && worker->box_stands()) return worker.get();
  return nullptr;
}

void Pool::on_change(Worker& worker) {
  switch (worker.state()) {
    case Worker::State::forking:
      to_fork_.push_back(worker.tag());
      return fork_next();
    case Worker::State::waiting:
      failures_ = 0;
      return listener_.available();
    case Worker::State::leased:
      ++figures_.calls;
      return;
    case Worker::State::ended:
      if (worker.error() != nullptr && ++failures_ >= kFailuresInARow) leave_to_workers(*worker.error());
      listener_.ended(worker);
      // Not from inside its own handler.
      if (sweep_ == 0) sweep_ = loop_.after({}, [this] { sweep(); });
      return;
    default:
      return;
  }
}

void Pool::sweep() {
  sweep_ = 0;
  workers_.remove_if([](const auto& worker) { return worker->state() == Worker::State::ended; });
  fill();
}

std::uint64_t Pool::memory() const {
  std::uint64_t sum = 0;
  for (const BoxCgroup& cgroup : cgroups_) sum += cgroup.memory().value_or(0);
  for (const auto& worker : workers_) sum += worker->memory();
  return sum;
}

std::size_t Pool::waiting() const {
  return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(), [](const auto& worker) {
    return worker->state() == Worker::State::waiting && !worker->discarded();
  }));
}

bool Pool::idle() const {
  return std::none_of(workers_.begin(), workers_.end(), [](const auto& worker) {
    return worker->state() == Worker::State::leased || worker->state() == Worker::State::running;
  });
}

PoolFigures Pool::figures() const {
  PoolFigures figures = figures_;
  for (const auto& worker : workers_) {
    if (worker->state() < Worker::State::waiting) ++figures.making;
    if (worker->state() == Worker::State::waiting) ++figures.waiting;
    if (worker->state() == Worker::State::leased || worker->state() == Worker::State::running) ++figures.busy;
  }
  return figures;
}

}  // namespace pctx
