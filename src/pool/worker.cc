#include "pool/worker.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include <fmt/format.h>

#include "launch/pick_cpus.h"
#include "launch/spawn.h"
#include "plan/refusal.h"
#include "pool/inspect.h"
#include "sys/diagnose.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"
#include "wire/packet.h"

namespace pctx {
namespace {

using Clock = std::chrono::steady_clock;

// From the order to the first sign of life; nobody waits that long, but nothing may stay half made.
constexpr auto kReadyWithin = std::chrono::seconds{30};
constexpr auto kRecordPatience = std::chrono::seconds{5};

// From a wide range: libraries notice a fork by the pid, so no two Workers of a Zygote, and never the Zygote, share
// one.
std::uint16_t random_pid() {
  std::uint16_t value = 0;
  if (::getrandom(&value, sizeof value, 0) != sizeof value)
    value = static_cast<std::uint16_t>(Clock::now().time_since_epoch().count());
  return static_cast<std::uint16_t>(300 + value % 30'000);
}

}  // namespace

std::string unique_cgroup_name(std::uint16_t tag) {
  return fmt::format("{}{}-{:x}-{}", kCgroupPrefix, ::getpid(), Clock::now().time_since_epoch().count(), tag);
}

Worker::Worker(sys::Loop& loop, const Plan& plan, std::uint16_t tag, Surroundings around,
               std::function<void(Worker&)> changed)
    : loop_(loop), plan_(plan), tag_(tag), around_(std::move(around)), changed_(std::move(changed)) {}

Worker::~Worker() {
  loop_.cancel(patience_);
  loop_.cancel(deadline_);
  loop_.cancel(watch_);
  loop_.cancel(ending_);
  stop_looking();
  around_.mover.forget(moving_);
  around_.inspector.forget(inspecting_);
  around_.folders.forget(tag_);
  for (const Fd* fd : {&status_, &made_, &memory_event_, &socket_}) loop_.forget(fd->get());
  if (pidfd_) (void)abi::pidfd_send_signal(pidfd_.get(), SIGKILL);
  if (network_ != 0) around_.relay.remove(network_, [](const NetworkRecord&) {});
}

void Worker::become(State state) {
  state_ = state;
  since_ = Clock::now();
  changed_(*this);
}

void Worker::fail(Error error) {
  if (state_ == State::ended) return;
  if (!discarded_) error_ = std::move(error);
  kill();
  if (!pidfd_) become(State::ended);
}

void Worker::expect_soon() {
  loop_.cancel(patience_);
  patience_ = loop_.after(kReadyWithin, [this] { fail(unavailable("a Worker was not ready in time", "try again")); });
}

Result<void> Worker::cut(const Maker& maker) {
  cgroup_ = PCTX_TRY(BoxCgroup::make(plan_, unique_cgroup_name(tag_)));
  tasks_ = PCTX_TRY(cgroup_.open_tasks());
  if (needs_room_to_fork()) PCTX_TRY(cgroup_.limit_processes(plan_.policy.limits.pids + 2));
  memory_event_ = cgroup_.watch_memory();
  auto [ours, theirs] = PCTX_TRY(wire::pair(SOCK_SEQPACKET));
  auto [made, made_by] = PCTX_TRY(sys::make_pipe());
  std::tie(socket_, their_socket_) = PCTX_TRY(wire::pair(SOCK_STREAM));
  sys::Pipe out = PCTX_TRY(sys::make_guest_pipe(0222)), err = PCTX_TRY(sys::make_guest_pipe(0222));
  out_ = std::move(out.read_end), their_out_ = std::move(out.write_end);
  err_ = std::move(err.read_end), their_err_ = std::move(err.write_end);
  // Whoever takes the lease waits for other things too. Our end of a pipe has flags of its own.
  for (const Fd* end : {&out_, &err_}) (void)::fcntl(end->get(), F_SETFL, O_NONBLOCK);
  // Each Worker's own: whoever shares an open file shares its flags.
  their_null_ = Fd{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  if (!their_null_) return os_error("cannot open /dev/null");
  status_ = std::move(ours);
  made_ = std::move(made);
  CutOrder order{.tag = tag_, .first_pid = random_pid(), .status = theirs.get(), .ready = made_by.get()};
  for (const Fd& fd : tasks_) order.tasks.push_back(fd.get());
  PCTX_TRY(order_cut(maker, order));
  expect_soon();
  loop_.watch(status_.get(), EPOLLIN, [this](std::uint32_t) { on_status(); });
  if (memory_event_)
    loop_.watch(memory_event_.get(), EPOLLIN, [this](std::uint32_t) {
      verdict_.memory_over = true;
      loop_.forget(memory_event_.get());
      kill();
    });
  return {};
}

// v1: whoever forks the Worker is in its cgroup at that moment, beside our init.
bool Worker::needs_room_to_fork() const {
  return cgroup_.active() && cgroup_.directory() < 0 && plan_.policy.limits.pids < 2;
}

void Worker::on_cut(Fd pidfd, int error) {
  if (!pidfd) return fail(os_error("cannot make the box of a Worker", error));
  pidfd_ = std::move(pidfd);
  if (error_) return kill();
  const auto init = pid_of(pidfd_.get());
  if (!init) return fail(init.error());
  init_ = *init;
  place_ = pid_namespace(init_);
  // End of file when init has started: only then may anything be forked into the box.
  loop_.watch(made_.get(), EPOLLIN, [this](std::uint32_t) {
    loop_.forget(made_.get());
    made_.reset();
    loop_.cancel(patience_);  // a Zygote that is being replaced may take its time
    if (state_ == State::cutting && !error_) become(State::forking);
  });
}

Result<std::vector<int>> Worker::fork_order() {
  zygote_ = around_.zygote();
  expect_soon();
  namespaces_ = PCTX_TRY(open_namespaces(init_, plan_));
  std::vector<int> fds{their_null_.get(), their_socket_.get(), their_out_.get(), their_err_.get()};
  for (const Fd& fd : namespaces_) fds.push_back(fd.get());
  for (const Fd& fd : tasks_) fds.push_back(fd.get());
  return fds;
}

void Worker::on_forked(int error) {
  tasks_.clear();
  namespaces_.clear();
  if (state_ != State::forking) return;
  if (error != 0) return fail(os_error("the Zygote could not fork a Worker", error));
  loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t) { on_ready_byte(); });
  become(State::warming);
}

// Pinned it is already, like its Zygote and all others of that. As many CPUs, but others, are its own.
void Worker::spread_over_cpus() {
  cpu_set_t allowed;
  if (plan_.pin_cpus == 0 || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const cpu_set_t chosen = pick_cpus(allowed, plan_.pin_cpus, static_cast<unsigned>(pid_));
  (void)::sched_setaffinity(pid_, sizeof chosen, &chosen);
}

Result<std::vector<int>> Worker::identify() {
  pid_ = PCTX_TRY(find_worker(around_.maker, init_, around_.known()));
  pid_below_ = PCTX_TRY(pctx::pid_below(pid_));
  // One more for our init. Not by the Worker itself, whose Zygote may have other plans.
  const rlimit processes{plan_.policy.limits.pids + 1, plan_.policy.limits.pids + 1};
  for (const ResourceLimit& limit : plan_.rlimits)
    if (limit.resource == RLIMIT_NPROC && ::prlimit(pid_, RLIMIT_NPROC, &processes, nullptr) != 0)
      return os_error("cannot limit the processes of a Worker");
  spread_over_cpus();
  return std::vector<int>{their_null_.get(), their_out_.get(), their_err_.get(), their_socket_.get()};
}

void Worker::on_ready_byte() {
  loop_.cancel(deadline_);
  loop_.forget(socket_.get());
  char byte = 0;
  const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (state_ != State::warming) return;
  if (got != 1 || byte != 'R') return fail(unavailable("a Worker ended while it was made ready", "try again"));
  const int directory = cgroup_.directory();
  if (directory < 0) return inspect({});
  const auto pid = find_worker(around_.maker, init_, around_.known());
  if (!pid) return fail(pid.error());
  moving_ = around_.mover.move(directory, *pid, [this, pid = *pid](int error) {
    if (state_ != State::warming) return;
    if (error != 0) return fail(os_error("a Worker cannot enter its cgroup", error));
    inspect(pid);
  });
}

void Worker::inspect(std::optional<pid_t> moved) {
  auto given = identify();
  if (!given) return fail(std::move(given).error());
  // What was moved must be what is looked at.
  if (moved && *moved != pid_) return fail(unavailable("a Worker ended while it was made ready", "try again"));
  inspecting_ = around_.inspector.inspect({pid_, init_, zygote_, *std::move(given), plan_.workdir},
                                          [this](const Result<void>& trusted) {
                                            if (state_ != State::warming) return;
                                            if (!trusted) return fail(trusted.error());
                                            admit();
                                          });
}

void Worker::admit() {
  if (needs_room_to_fork())
    if (auto limited = cgroup_.limit_processes(plan_.policy.limits.pids + 1); !limited)
      return fail(std::move(limited).error());
  loop_.cancel(patience_);
  for (Fd* fd : {&their_null_, &their_socket_, &their_out_, &their_err_}) fd->reset();
  if (plan_.watchdog.memory && meter_) {
    (void)meter_.measure(plan_.policy.limits.memory);  // for memory()
    meter_.inherit();
  }
  become(State::waiting);
}

Worker::Lease Worker::lease() {
  lent_ = true;
  if (plan_.policy.mnt) {
    mnt_ = Fd{::open(plan_.policy.mnt->c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
    watch_folder();
  }
  become(State::leased);
  return {socket_.get(), out_.get(), err_.get()};
}

// Before the caller can begin. What cannot be listed is not: the call is worth more than the list.
void Worker::watch_folder() {
  auto snapshot = take_snapshot(mnt_.get(), {});
  if (!snapshot) return;
  before_ = *std::move(snapshot);
  await_clock_tick(*before_);
}

Result<void> Worker::lend_folder(const std::string& path, std::function<void(const Result<void>&)> done) {
  if (state_ != State::leased || mnt_ || !plan_.folder)
    return usage_error("this Worker takes no folder",
                       "lend one before the call, to a Worker that was asked for with one");
  mnt_ = PCTX_TRY(around_.folders.lend(plan_, init_, tag_, path, [this, path, done = std::move(done)](int error) {
    if (error != 0) return done(os_error(fmt::format("{} cannot be lent", path), error));
    watch_folder();
    done({});
  }));
  return {};
}

void Worker::handed_over() {
  socket_.reset();
  out_.reset();
  err_.reset();
}

void Worker::start_call(std::optional<Millis> timeout) {
  if (state_ != State::leased) return;
  started_ = Clock::now();
  timeout_ = timeout.value_or(plan_.policy.limits.timeout);
  if (timeout_.count() > 0)
    deadline_ = loop_.after(timeout_, [this] {
      verdict_.timed_out = true;
      kill();
    });
  if (plan_.watchdog.any()) check_limits();
  if (meter_) look_ = loop_.after(kFirstLook, [this] { watch_kernel_memory(); });
  become(State::running);
}

void Worker::watch_kernel_memory() {
  loop_.cancel(look_);
  auto watched = around_.lookout.watch(plan_, {meter_.proc(), locks_.get(), diag_.get()});
  if (!watched) return fail(with_next_step(std::move(watched).error()));
  excess_ = std::move(watched->heard);
  watched_as_ = watched->number;
  loop_.watch(excess_.get(), EPOLLIN, [this](std::uint32_t) {
    const Heard heard = hear(excess_.get(), meter_, verdict_);
    if (heard == Heard::figures) return;
    stop_looking();
    heard == Heard::excess ? kill() : watch_kernel_memory();  // somebody has killed it
  });
}

void Worker::stop_looking() {
  loop_.cancel(look_);
  loop_.forget(excess_.get());
  excess_.reset();
}

void Worker::check_limits() {
  meter_.count_shared(denials_.shared());
  bool over = over_limits(plan_, meter_, cgroup_, verdict_);
  if (around_.lookout.is_held_up_by(excess_ ? watched_as_ : 0, meter_.doubtful())) verdict_.memory_over = over = true;
  if (over) return kill();
  if (meter_.doubtful() && state_ == State::running) {
    if (!excess_) watch_kernel_memory();
    if (!excess_) return;  // it has failed
    ask_to_look(excess_.get());
  }
  watch_ = loop_.after(kWatchInterval, [this] { check_limits(); });
}

std::uint64_t Worker::memory() const {
  const std::uint64_t seen = cgroup_.memory().value_or(meter_.last_memory());
  return state_ < State::waiting ? std::max(seen, kMemoryAtFirst) : seen;
}

bool Worker::box_stands() const { return !ends_within(pidfd_.get(), Millis{0}); }

bool Worker::waits_still() const { return state_ != State::waiting || pctx::waits_still(pid_, init_, around_.maker); }

void Worker::look() {
  if (state_ != State::warming || find_worker(around_.maker, init_, around_.known())) return;
  fail(unavailable("a Worker ended while it was made ready", "try again"));
}

void Worker::discard() {
  discarded_ = true;
  kill();
}

// At once, unless the Receipt needs the time of somebody whom nobody has waited for.
void Worker::kill() {
  loop_.cancel(deadline_);
  loop_.cancel(watch_);
  stop_looking();
  if (!pidfd_ || ending_ != 0) return;
  const auto kill_init = [this] { (void)abi::pidfd_send_signal(pidfd_.get(), SIGKILL); };
  const bool counts = state_ == State::running && !discarded_ && !error_ && !all_known() && !cgroup_.counts_cpu();
  if (!counts || !order_end(status_.get())) return kill_init();
  ending_ = loop_.after(kEndPatience, kill_init);
}

void Worker::on_status() {
  StatusFrame frame{};
  FrameFds fds;
  const FrameRead read = read_frame(status_.get(), frame, fds);
  if (read == FrameRead::end) loop_.forget(status_.get());
  if (read != FrameRead::frame) return;
  switch (frame.kind) {
    case Message::failure:
      return fail(describe_failure(frame, plan_, {}));
    case Message::probes:
      meter_.watch_tree(std::move(fds[0]), std::move(fds[2]));
      locks_ = std::move(fds[1]);
      break;
    case Message::store:
      meter_.watch_store(std::move(fds[0]));
      break;
    case Message::network:
      return on_network(frame, fds);
    case Message::sockets:
      diag_ = std::move(fds[0]);
      break;
    default:
      break;
  }
}

// Its network is ready before it waits: init, which lets anything be forked into the box, starts after this.
void Worker::on_network(const StatusFrame& frame, FrameFds& fds) {
  auto whole = ends_.take(plan_, frame, fds);
  if (!whole) return fail(std::move(whole).error());
  if (!*whole) return;
  attempts_seen_ = attempts_are_seen(ends_.ends);
  auto added = around_.relay.add(plan_.policy.allowed, std::move(ends_.ends));
  if (!added) return fail(std::move(added).error());
  network_ = *added;
}

void Worker::on_exit(int wait_status) {
  told_ = true;
  verdict_.wait_status = wait_status;
  ended_at_ = Clock::now();
  stop_looking();
  usage_ = cgroup_.usage();
  others_ = !usage_.cpu_microseconds && !was_all();
}

void Worker::on_spent(Millis cpu) {
  if (waited_cpu_) *waited_cpu_ += cpu;
}

void Worker::on_reaped(std::optional<Millis> cpu) {
  if (state_ == State::ended) return;
  loop_.cancel(patience_);
  if (cpu)
    on_spent(*cpu);
  else
    waited_cpu_.reset();
  loop_.cancel(deadline_);
  loop_.cancel(watch_);
  loop_.cancel(ending_);
  stop_looking();
  for (const Fd* fd : {&status_, &made_, &memory_event_, &socket_}) loop_.forget(fd->get());
  if (!told_) {
    verdict_.wait_status = SIGKILL;
    ended_at_ = Clock::now();
    usage_ = cgroup_.usage();
  }
  if (auto removed = cgroup_.remove(); !removed && !error_) error_ = removed.error();
  pidfd_.reset();
  if (state_ < State::waiting && !discarded_ && !error_)
    error_ = unavailable("a Worker ended before it was ready", "try again");
  end();
}

// Its receipt needs what the relay has written down, which comes a moment later.
void Worker::end() {
  if (network_ == 0) return become(State::ended);
  patience_ = loop_.after(kRecordPatience, [this] { become(State::ended); });
  around_.relay.remove(std::exchange(network_, 0), [this, alive = std::weak_ptr<bool>{alive_}](NetworkRecord record) {
    if (alive.expired() || state_ == State::ended) return;
    loop_.cancel(patience_);
    record_ = std::move(record);
    become(State::ended);
  });
}

// Nobody is left in the box but what is ours: its init, which a cgroup of v2 does not hold, and who keeps the memory of
// a script. Where nothing tells, that need not be so.
bool Worker::is_empty() const {
  const std::uint64_t init = cgroup_.directory() < 0 ? 1 : 0;
  if (const auto living = cgroup_.processes()) return *living <= init + around_.left_behind;
  return meter_ && meter_.processes() <= around_.left_behind;
}

// init has taken over nobody's account: all is in that of the Worker's own process. Asked last whether it stands: an
// init that has ended meanwhile looks as if it never had.
bool Worker::was_all() const { return is_empty() && waited_for(init_).count() == 0 && box_stands(); }

// What is left of it may go on writing, to files or to others, until its box is dead, and its time is known then.
bool Worker::all_known() const {
  const auto& binds = plan_.policy.binds;
  const bool writes = mnt_ || std::any_of(binds.begin(), binds.end(), [](const Bind& bind) { return bind.writable; });
  const bool talks = plan_.network || (!plan_.layer(Layer::network).on && !is_empty());
  return told_ && !writes && !talks && !others_;
}

Ending Worker::ending() const {
  Ending ending;
  Verdict verdict = verdict_;
  verdict.oom_kill = usage_.oom_kills > 0;
  verdict.killed_calls = killed_calls(plan_);
  Limits limits = plan_.policy.limits;
  limits.timeout = timeout_;
  ending.outcome = judge(verdict, limits);
  Receipt& receipt = ending.receipt;
  receipt.layers = plan_.layers;
  receipt.limits = plan_.bindings;
  receipt.denials = denials_;
  receipt.denials_recorded = plan_.listener;
  if (plan_.network) receipt.network = record_.value_or(NetworkRecord{.connections = {}, .complete = false});
  receipt.attempts_recorded = attempts_seen_;
  receipt.usage.wall = std::chrono::round<Millis>(ended_at_ - started_);
  settle({.cgroup = usage_,
          .has_cgroup = plan_.cgroup.version != CgroupVersion::none,
          .waited_cpu = waited_cpu_,
          .watched = meter_.highest()},
         receipt.usage);
  if (before_)
    if (auto after = take_snapshot(mnt_.get(), {}); after) ending.changes = diff(*before_, *after);
  return ending;
}

}  // namespace pctx
