#include "box/box.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <tuple>

#include <fmt/format.h>

#include "box/account.h"
#include "box/cgroup.h"
#include "box/janitor.h"
#include "box/lookout.h"
#include "box/network.h"
#include "box/pty.h"
#include "box/signal_events.h"
#include "box/stream.h"
#include "box/watchdog.h"
#include "plan/refusal.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

constexpr Millis kTerminalInterval{200};  // as soon as whoever types would notice

using Clock = std::chrono::steady_clock;

class Supervisor {
 public:
  Supervisor(const Plan& plan, const Command& command, const RunOptions& options, std::unique_ptr<HeadStart> head)
      : plan_(plan),
        command_(command),
        options_(options),
        head_(std::move(head)),
        budget_{plan.policy.limits.output, false} {}
  ~Supervisor() { kill_box(); }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  Result<void> start();
  Result<void> supervise();
  Result<Ending> finish();

 private:
  void kill_box();
  void end_box();
  void on_status();
  void on_signal();
  void on_input();
  void note_refused_processes();
  void on_network(const StatusFrame& frame, FrameFds& fds);
  void collect_record();
  void check_limits();
  // The box tells of itself once it stands, which may take longer than the time to the first look.
  bool can_be_looked_at() const { return !ended_ && (meter_ || !plan_.sends_probes()); }
  bool watch_cgroup();
  void watch_kernel_memory();
  void on_excess();
  int wait_budget() const;

  const Plan& plan_;
  const Command& command_;
  const RunOptions& options_;
  std::unique_ptr<HeadStart> head_;  // until start() is through
  const SignalEvents signals_;
  OutputBudget budget_;
  BoxCgroup cgroup_;
  CgroupUsage cgroup_usage_;
  Janitor janitor_;
  Spawned box_;
  Fd memory_event_, master_;
  TreeMeter meter_;
  Lookout lookout_;
  Fd diag_, locks_, excess_;
  unsigned watched_as_ = 0;  // by the lookout
  RawTerminal raw_;
  Stream in_, out_, err_;
  DenialLog denials_;
  RelayKeeper relay_{RelayKeeper::Serves::one_box};
  EndsReader ends_;
  std::uint32_t network_ = 0;  // this box, as the relay calls it
  bool attempts_seen_ = true;
  std::optional<NetworkRecord> record_;
  std::optional<FolderSnapshot> before_;
  Fd mnt_;
  Clock::time_point started_, next_check_, first_look_, next_tick_;
  std::optional<Clock::time_point> kill_at_;  // init has been told to end the box
  bool running_ = false;
  bool ended_ = false;  // init told us how the guest ended
  bool interrupted_ = false;
  int forwarded_ = 0, typed_ = 0;
  std::uint64_t processes_refused_ = 0;
  std::optional<Error> failure_;
  std::array<LayerState, kLayers.size()> layers_ = plan_.layers;
  Verdict verdict_;
  rusage usage_{};
};

Result<void> Supervisor::start() {
  if (!head_ || !head_->fits(plan_)) {
    head_.reset();  // before the next one takes its place
    head_ = PCTX_TRY(HeadStart::begin(plan_, !options_.capture && outputs_are_one()));
  }
  if (plan_.terminal) raw_ = PCTX_TRY(RawTerminal::enter(STDIN_FILENO));
  if (options_.report_changes && plan_.policy.mnt) {
    mnt_ = PCTX_TRY(sys::open_at(AT_FDCWD, *plan_.policy.mnt, O_PATH | O_DIRECTORY));
    before_ = PCTX_TRY(take_snapshot(mnt_.get(), {}));
    await_clock_tick(*before_);
  }
  PCTX_TRY(head_->cgroup.bind(plan_));
  started_ = Clock::now();
  next_check_ = started_;
  first_look_ = started_ + kFirstLook;
  next_tick_ = started_ + kTick;
  box_ = PCTX_TRY(std::move(head_->embryo).grow(plan_, command_));
  running_ = true;
  cgroup_ = std::move(head_->cgroup);
  auto [in, out, err] = std::tuple{std::move(head_->in), std::move(head_->out), std::move(head_->err)};
  head_.reset();
  // v1 directories are made while the box makes its namespaces: it joins them after that.
  if (plan_.cgroup.version == CgroupVersion::v1) {
    cgroup_ = PCTX_TRY(BoxCgroup::make(plan_, box_cgroup_name()));
    const std::vector<Fd> tasks = PCTX_TRY(cgroup_.open_tasks());
    std::vector<int> numbers;
    for (const Fd& fd : tasks) numbers.push_back(fd.get());
    PCTX_TRY(admit(box_, numbers));
  }
  if (plan_.network) PCTX_TRY(relay_.start());
  janitor_ = Janitor::start(cgroup_);
  if (plan_.terminal) return {};  // the streams are the pty's, which comes with Message::terminal
  const auto sink = [&](int fd) { return options_.capture ? -1 : fd; };
  if (!options_.no_input) in_ = Stream::input(STDIN_FILENO, std::move(in.write_end), std::move(in.read_end));
  out_ = Stream::output(std::move(out.read_end), sink(STDOUT_FILENO), &budget_,
                        !options_.capture && ::isatty(STDOUT_FILENO) == 1);
  if (!err.read_end) return {};
  err_ = Stream::output(std::move(err.read_end), sink(STDERR_FILENO), &budget_,
                        !options_.capture && ::isatty(STDERR_FILENO) == 1);
  return {};
}

void Supervisor::kill_box() {
  if (!running_) return;
  (void)abi::pidfd_send_signal(box_.pidfd.get(), SIGKILL);
  running_ = false;
  while (::wait4(box_.pid, nullptr, __WALL, &usage_) < 0 && errno == EINTR) {
  }
}

// With a reason that goes into the Receipt. Where a cgroup has counted the box's time, nobody need be waited for.
void Supervisor::end_box() {
  if (kill_at_) return;
  kill_at_ = Clock::now();
  if (!cgroup_.counts_cpu() && order_end(box_.status.get()))
    *kill_at_ += kEndPatience;
  else
    (void)abi::pidfd_send_signal(box_.pidfd.get(), SIGKILL);
}

void Supervisor::on_status() {
  StatusFrame frame{};
  FrameFds fds;
  const FrameRead read = read_frame(box_.status.get(), frame, fds);
  if (read == FrameRead::end) box_.status.reset();
  if (read != FrameRead::frame) return;
  switch (frame.kind) {
    case Message::failure:
      if (!failure_) failure_ = describe_failure(frame, plan_, command_);
      (void)abi::pidfd_send_signal(box_.pidfd.get(), SIGKILL);
      break;
    case Message::lacking:
      note_lack(frame, layers_);
      break;
    case Message::ended:
      ended_ = true;
      verdict_.wait_status = frame.value;
      // init is on its way out, and takes its time. The janitor may go meanwhile: should we be killed now, the next run
      // sweeps.
      janitor_.release();
      excess_.reset();
      lookout_.release();
      cgroup_usage_ = cgroup_.usage();
      note_refused_processes();
      meter_.measure_rest();
      // From here on its usage tells whether memory ran out: v1 also wakes whoever listens when a cgroup is removed.
      memory_event_.reset();
      // init is in none of v1's: they are empty now, unless the guest left processes behind.
      if (plan_.cgroup.version == CgroupVersion::v1) cgroup_.remove_empty();
      break;
    case Message::listener:
      denials_.listen(std::move(fds[0]), plan_);
      break;
    case Message::probes:
      meter_.watch_tree(std::move(fds[0]), std::move(fds[2]));
      locks_ = std::move(fds[1]);
      break;
    case Message::store:
      meter_.watch_store(std::move(fds[0]));
      break;
    case Message::sockets:
      diag_ = std::move(fds[0]);
      break;
    case Message::network:
      on_network(frame, fds);
      break;
    case Message::terminal:
      master_ = std::move(fds[0]);
      copy_window_size(STDIN_FILENO, master_.get());
      in_ = Stream::input(STDIN_FILENO, Fd{::fcntl(master_.get(), F_DUPFD_CLOEXEC, 3)});
      out_ = Stream::output(Fd{::fcntl(master_.get(), F_DUPFD_CLOEXEC, 3)}, STDOUT_FILENO, &budget_, false);
      break;
    default:
      break;
  }
}

void Supervisor::on_network(const StatusFrame& frame, FrameFds& fds) {
  auto whole = ends_.take(plan_, frame, fds);
  if (whole && !*whole) return;
  auto added = Result<std::uint32_t>{0U};
  if (whole) {
    attempts_seen_ = attempts_are_seen(ends_.ends);
    added = relay_.add(plan_.policy.allowed, std::move(ends_.ends));
  }
  if (whole && added) {
    network_ = *added;
    return;
  }
  if (!failure_) failure_ = whole ? std::move(added).error() : std::move(whole).error();
  (void)abi::pidfd_send_signal(box_.pidfd.get(), SIGKILL);
}

// What the guest said last may still be on its way through the relay: it tells when all of it has been.
void Supervisor::collect_record() {
  if (!plan_.network) return;
  constexpr auto kPatience = std::chrono::seconds{5};
  if (network_ != 0) relay_.remove(network_, [&](NetworkRecord record) { record_ = std::move(record); });
  const auto until = Clock::now() + kPatience;
  while (network_ != 0 && !record_ && Clock::now() < until && relay_.fd() >= 0) {
    pollfd told{relay_.fd(), POLLIN, 0};
    if (::poll(&told, 1, 100) > 0) relay_.serve();
  }
  if (!record_) record_ = NetworkRecord{.connections = {}, .complete = false};
  if (options_.last) relay_.let_go();
}

void Supervisor::on_signal() {
  for (auto event = signals_.next(); event.signal != 0; event = signals_.next()) {
    const int signal = event.signal;
    if (signal == SIGWINCH) {
      if (master_) copy_window_size(STDIN_FILENO, master_.get());
      continue;
    }
    forwarded_ = signal;
    if (event.typed) typed_ = signal;
    // A guest that shrugs off the first Ctrl-C does not get to keep the terminal.
    if (signal == SIGINT && std::exchange(interrupted_, true)) end_box();
    if (box_.status) (void)send_frame(box_.status.get(), {Message::signal, Step::handshake, 0, 0, signal});
  }
}

// Seldom said by the guest itself, which fails for it; of one that does not, nobody asks.
void Supervisor::note_refused_processes() {
  if (!ended_ || verdict_.wait_status != 0) processes_refused_ = cgroup_.refused_processes();
}

// A guest that takes half of its input for all of it gives a wrong answer.
void Supervisor::on_input() {
  in_.on_readable();
  if (in_.source_error() == 0 || failure_) return;
  failure_ = os_error("standard input cannot be read", in_.source_error());
  failure_->hint = in_.source_error() == EISDIR ? "give it a file, or nothing: < /dev/null; a folder is lent with --ro"
                                                : "look at what it comes from: not all of it was read";
  (void)abi::pidfd_send_signal(box_.pidfd.get(), SIGKILL);
}

// Not from the start: the kernel takes its time to end a watch, and most runs are short. Whether it has killed somebody
// meanwhile.
bool Supervisor::watch_cgroup() {
  memory_event_ = cgroup_.watch_memory();
  return memory_event_ && cgroup_.usage().oom_kills > 0;
}

void Supervisor::watch_kernel_memory() {
  auto watched = lookout_.watch(plan_, {meter_.proc(), locks_.get(), diag_.get()});
  if (watched) {
    excess_ = std::move(watched->heard);
    watched_as_ = watched->number;
  } else {
    excess_.reset();
    if (!failure_) failure_ = std::move(watched).error();
    end_box();
  }
}

void Supervisor::on_excess() {
  const Heard heard = hear(excess_.get(), meter_, verdict_);
  if (heard == Heard::nothing_more) return watch_kernel_memory();  // somebody has killed it
  if (heard == Heard::figures) return;
  excess_.reset();
  end_box();
}

void Supervisor::check_limits() {
  const auto now = Clock::now();
  const Limits& limits = plan_.policy.limits;
  bool over = budget_.exceeded;
  verdict_.output_over = budget_.exceeded;
  if (limits.timeout.count() > 0 && now - started_ >= limits.timeout) verdict_.timed_out = over = true;
  if (plan_.watchdog.any() && now >= next_check_) {
    next_check_ = now + kWatchInterval;
    meter_.count_shared(denials_.book().shared());
    over |= over_limits(plan_, meter_, cgroup_, verdict_);
    if (lookout_.is_held_up_by(watched_as_, meter_.doubtful())) verdict_.memory_over = over = true;
    if (meter_.doubtful() && excess_) ask_to_look(excess_.get());
    if (meter_.doubtful() && first_look_ != Clock::time_point::max()) first_look_ = now;
  }
  if (can_be_looked_at() && now >= first_look_) {
    first_look_ = Clock::time_point::max();
    over |= watch_cgroup();
    if (meter_) watch_kernel_memory();
  }
  if (options_.tick && now >= next_tick_) {
    next_tick_ = now + kTick;
    if (!options_.tick()) over = true;
  }
  if (over) end_box();
  if (kill_at_ && now >= *kill_at_) (void)abi::pidfd_send_signal(box_.pidfd.get(), SIGKILL);
}

// Milliseconds until something must be looked at without an event.
int Supervisor::wait_budget() const {
  const auto now = Clock::now();
  auto until = now + std::chrono::hours{1};
  if (kill_at_)
    until = std::min(until, std::max(*kill_at_, now + Millis{1}));
  else if (plan_.policy.limits.timeout.count() > 0)
    until = std::min(until, started_ + plan_.policy.limits.timeout);
  if (in_.in_background()) until = std::min(until, now + kTerminalInterval);
  if (plan_.watchdog.any()) until = std::min(until, std::max(next_check_, now + Millis{1}));
  if (can_be_looked_at()) until = std::min(until, std::max(first_look_, now + Millis{1}));
  if (options_.tick) until = std::min(until, std::max(next_tick_, now + Millis{1}));
  if (const auto answer = denials_.wakes(now)) until = std::min(until, *answer);
  const auto left = std::chrono::ceil<Millis>(until - now).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

Result<void> Supervisor::supervise() {
  enum Slot {
    pidfd,
    status,
    signal,
    memory,
    excess,
    denial,
    text,
    relay,
    in_read,
    in_write,
    out_read,
    out_write,
    err_read,
    err_write,
    slots
  };
  for (;;) {
    if (in_.in_background()) in_.look_at_terminal();
    std::array<pollfd, slots> fds{};
    const auto watch = [&](Slot slot, int fd, short events) { fds[slot] = {fd, events, 0}; };
    watch(pidfd, box_.pidfd.get(), POLLIN);
    watch(status, box_.status.get(), POLLIN);
    watch(signal, signals_.fd(), POLLIN);
    watch(memory, memory_event_.get(), POLLIN);
    watch(excess, excess_.get(), POLLIN);
    watch(denial, denials_.poll_fd(Clock::now()), POLLIN);
    watch(text, denials_.text_fd(), POLLIN);
    watch(relay, relay_.fd(), POLLIN);
    watch(in_read, in_.read_fd(), POLLIN);
    watch(in_write, in_.write_fd(), POLLOUT);
    watch(out_read, out_.read_fd(), POLLIN);
    watch(out_write, out_.write_fd(), POLLOUT);
    watch(err_read, err_.read_fd(), POLLIN);
    watch(err_write, err_.write_fd(), POLLOUT);
    if (::poll(fds.data(), fds.size(), wait_budget()) < 0 && errno != EINTR) return os_error("cannot wait for the box");
    const auto ready = [&](Slot slot) { return fds[slot].revents != 0; };
    if (ready(status)) on_status();
    if (ready(signal)) on_signal();
    if (ready(memory)) {
      verdict_.memory_over = true;
      memory_event_.reset();
      end_box();
    }
    if (ready(excess) && excess_) on_excess();
    // POLLHUP without POLLIN: the last process under the filter is gone.
    if (ready(denial) && ((fds[denial].revents & POLLIN) == 0 || !denials_.serve(Clock::now()))) denials_.close();
    if (ready(text)) denials_.hear(Clock::now());
    denials_.answer_due(Clock::now());
    if (ready(relay)) {
      relay_.serve();
      if (relay_.failure() && !failure_) {
        failure_ = relay_.failure();
        (void)abi::pidfd_send_signal(box_.pidfd.get(), SIGKILL);
      }
    }
    if (ready(in_read)) on_input();
    if (ready(in_write)) in_.on_writable();
    if (ready(out_read)) out_.on_readable();
    if (ready(out_write)) out_.on_writable();
    if (ready(err_read)) err_.on_readable();
    if (ready(err_write)) err_.on_writable();
    // Not the end of its output: a grandchild may hold a pipe open for ever. Once init is gone, everything is.
    if (ready(pidfd)) break;
    check_limits();
  }
  while (box_.status && !ended_) {
    pollfd rest{box_.status.get(), POLLIN, 0};
    if (::poll(&rest, 1, 0) <= 0) break;
    on_status();
  }
  return {};
}

Result<Ending> Supervisor::finish() {
  Ending ending;
  running_ = false;
  int init_status = 0;
  while (::wait4(box_.pid, &init_status, __WALL, &usage_) < 0 && errno == EINTR) {
  }
  ending.receipt.usage.wall = std::chrono::round<Millis>(Clock::now() - started_);
  in_.give_back();
  out_.drain(signals_.fd());
  err_.drain(signals_.fd());
  // Here, and not only in check_limits: the byte too much may have come with the news of the end.
  if (budget_.exceeded) verdict_.output_over = true;
  raw_.leave();
  const bool has_cgroup = plan_.cgroup.version != CgroupVersion::none;
  const CgroupUsage cgroup = ended_ ? cgroup_usage_ : cgroup_.usage();
  if (!ended_) note_refused_processes();
  ending.receipt.processes_refused = processes_refused_;
  janitor_.release();
  auto removed = cgroup_.remove();
  janitor_.dismiss();
  if (!removed) return std::move(removed).error();
  if (!ended_ && !kill_at_ && !failure_) failure_ = untold_end(init_status);
  if (failure_) return *std::move(failure_);
  collect_record();
  // Killed by us, from outside, or by the kernel for memory: init had no time to tell.
  if (!ended_) verdict_.wait_status = SIGKILL;
  verdict_.oom_kill = cgroup.oom_kills > 0;
  denials_.close();  // it may be told of calls that the end has broken off
  verdict_.killed_calls = killed_calls(plan_);
  ending.outcome = judge(verdict_, plan_.policy.limits);
  Receipt& receipt = ending.receipt;
  receipt.layers = layers_;
  receipt.limits = plan_.bindings;
  receipt.truncated = budget_.exceeded;
  receipt.denials = denials_.book();
  receipt.denials_recorded = plan_.listener;
  receipt.network = std::move(record_);
  receipt.attempts_recorded = attempts_seen_;
  Usage& usage = receipt.usage;
  Account account{.cgroup = cgroup, .has_cgroup = has_cgroup, .watched = meter_.highest()};
  if (init_status == 0) {  // it has waited for everybody else
    const auto millis = [](const timeval& time) { return Millis{time.tv_sec * 1000 + time.tv_usec / 1000}; };
    account.waited_cpu = millis(usage_.ru_utime) + millis(usage_.ru_stime);
    account.largest_process = static_cast<std::uint64_t>(usage_.ru_maxrss) * 1024;
  }
  settle(account, usage);
  usage.stdout_bytes = out_.bytes();
  usage.stderr_bytes = err_.bytes();
  ending.captured_stdout = out_.captured();
  ending.captured_stderr = err_.captured();
  ending.forwarded_signal = forwarded_;
  ending.typed_signal = typed_;
  ending.sink_error = out_.sink_error() != 0 ? out_.sink_error() : err_.sink_error();
  if (before_) ending.changes = diff(*before_, PCTX_TRY(take_snapshot(mnt_.get(), {})));
  return ending;
}

}  // namespace

Result<Ending> run_box(const Plan& plan, const Command& command, const RunOptions& options,
                       std::unique_ptr<HeadStart> head) {
  Supervisor supervisor{plan, command, options, std::move(head)};
  PCTX_TRY(supervisor.start());
  // What killed runs have left is swept while the new box is being built: nobody waits for it.
  sweep_cgroups(plan.cgroup);
  PCTX_TRY(supervisor.supervise());
  return supervisor.finish();
}

}  // namespace pctx
