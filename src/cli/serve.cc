// The verbs around the Broker: serve, status, stop, restart.
#include <fcntl.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>

#include <fmt/format.h>
#include <poll.h>

#include "backend/backend.h"
#include "base/json.h"
#include "base/print.h"
#include "base/printable.h"
#include "box/cgroup.h"
#include "broker/address.h"
#include "broker/broker.h"
#include "cli/verbs.h"
#include "net/door.h"
#include "sys/delegation.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"
#include "sys/process.h"
#include "wire/packet.h"

namespace pctx::cli {
namespace {

constexpr int kAnswerMillis = 5000;

// Outlives the Broker, however that one ends: cgroups are the one thing of its Workers that stays.
void start_sweeper() {
  int lifeline[2];
  if (::pipe2(lifeline, O_CLOEXEC) != 0) return;
  const pid_t pid = ::fork();
  if (pid != 0) {
    ::close(lifeline[0]);  // the other end is the Broker's, until its end
    return;
  }
  ::close(lifeline[1]);
  ::setsid();
  (void)::prctl(PR_SET_NAME, "pctx-sweeper");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  sys::close_all_but({&lifeline[0], 1});
  char byte;
  while (::read(lifeline[0], &byte, 1) < 0 && errno == EINTR) {
  }
  // The boxes need a moment to die.
  for (int i = 0; i < 20; ++i) {
    sweep_cgroups(probe_host().cgroup);
    const timespec pause{0, 50'000'000};
    ::nanosleep(&pause, nullptr);
  }
  ::_exit(0);
}

// A caller that ends its call wakes us, and the kernel would run us in its place before it has returned: half a
// millisecond of every call, where CPUs are busy. Batch processes wait until the waker sleeps. Makers take it back: a
// Worker that is sent a call must start at once.
void give_way_to_callers() {
  const sched_param none{};
  (void)::sched_setscheduler(0, SCHED_BATCH, &none);
}

// Every Worker takes a dozen descriptors here; the usual soft limit of 1024 is reached with less than 64 of them and
// their callers. Guests have a limit of their own.
Result<void> allow_many() {
  constexpr std::uint64_t kFewest = 256;
  if (const std::uint64_t most = sys::allow_descriptors(); most < kFewest)
    return unavailable(fmt::format("the Broker needs {} open files, and the hard limit here is {}", kFewest, most),
                       "raise it (ulimit -Hn), or start the Broker where it is higher: pctx-sandbox serve");
  return {};
}

// Whoever calls first starts the Broker of all callers of this user: what binds that one must not bind the others.
// What the kernel does not give back stays: hard limits, and niceness without the right to less of it.
void shed_what_binds_the_caller() {
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);  // those of our cpuset, that is
  (void)::sched_setaffinity(0, sizeof all, &all);
  (void)::setpriority(PRIO_PROCESS, 0, 0);
  (void)::personality(PER_LINUX);  // `setarch -R`: Workers at addresses that anybody can guess
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA, RLIMIT_FSIZE, RLIMIT_CPU, RLIMIT_NPROC}) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0) continue;
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(resource, &limit);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

int serve_here(const BrokerAddress& address, Bound bound, const BrokerOptions& options) {
  if (auto allowed = allow_many(); !allowed) return complain(allowed.error());
  settle_in_scope(probe_host().cgroup);
  start_sweeper();
  (void)::prctl(PR_SET_NAME, kBrokerProcess);
  give_way_to_callers();
  (void)!::chdir("/");
  const auto served = serve(std::move(bound.listener), options);
  if (!bound.inherited) (void)::unlink(address.socket.c_str());  // under the lock: nobody else's
  return served ? 0 : complain(served.error());
}

// Returns 0 once the socket takes connections; the Broker lives on in a session of its own.
int serve_behind(const BrokerAddress& address, const BrokerOptions& options) {
  int told[2];
  if (::pipe2(told, O_CLOEXEC) != 0) return complain(os_error("cannot make a pipe"));
  const pid_t pid = ::fork();
  if (pid < 0) return complain(os_error("cannot start the Broker"));
  if (pid == 0) {
    ::setsid();
    shed_what_binds_the_caller();
    auto bound = bind_broker(address);
    // Said while somebody listens.
    auto allowed = bound && *bound ? allow_many() : Result<void>{};
    if (!bound || !allowed) {
      (void)complain(bound ? allowed.error() : bound.error());
      ::_exit(kFailed);
    }
    const int null = ::open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) (void)::dup2(null, fd);
    // Nothing of whoever happened to call first stays open here.
    std::vector<int> keep{0, 1, 2, told[1]};
    if (*bound) keep.insert(keep.end(), {(*bound)->lock.get(), (*bound)->listener.get()});
    std::erase_if(keep, [](int fd) { return fd < 0; });
    std::sort(keep.begin(), keep.end());
    sys::close_all_but(keep);
    (void)!::write(told[1], "1", 1);
    ::close(told[1]);
    ::_exit(*bound ? serve_here(address, std::move(**bound), options) : 0);
  }
  ::close(told[1]);
  char byte = 0;
  const bool ready = ::read(told[0], &byte, 1) == 1;
  ::close(told[0]);
  if (ready) return 0;
  int status = 0;
  (void)::waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : kFailed;
}

// As a container's first process everything that is orphaned in there is ours to wait for, and signals that nobody
// handles do nothing: the Broker is a child, and its end is the container's.
int serve_as_init(const std::function<int()>& serve) {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // While nobody else is in the container's cgroup: whoever comes later is put where its first process is.
  if (has_unified_cgroups()) net::await_welcome();
  settle_in_scope(probe_host().cgroup);
  const pid_t broker = ::fork();
  if (broker < 0) return complain(os_error("cannot start the Broker"));
  if (broker == 0) {
    ::sigemptyset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    return serve();
  }
  (void)::prctl(PR_SET_NAME, "pctx-init");
  for (;;) {
    int status = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG | __WALL)) > 0;)
      if (ended == broker) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    siginfo_t happened{};
    if (::sigwaitinfo(&all, &happened) > 0 && happened.si_signo != SIGCHLD) (void)::kill(broker, SIGTERM);
  }
}

// Null: it has ended meanwhile.
Result<Json> ask(const Fd& broker, const std::string& text) {
  if (!wire::send(broker.get(), text)) return os_error("the Broker does not listen");
  pollfd answer{broker.get(), POLLIN, 0};
  if (::poll(&answer, 1, kAnswerMillis) <= 0)
    return unavailable("the Broker does not answer", "end it with 'pctx-sandbox restart'");
  wire::Packet packet;
  if (wire::receive(broker.get(), packet) != wire::Received::packet) return Json{};
  return Json::parse(packet.text, nullptr, false);
}

// The Broker of a backend; that of the namespaces if none is named.
Result<BrokerAddress> address_of(const std::string& name) {
  if (name.empty()) return broker_address(PCTX_VERSION);
  const auto choice = PCTX_TRY(backend::choose(name));
  return choice.backend->address(PCTX_VERSION);
}

int show_broker_status(const std::string& backend, bool as_json) {
  const auto address = address_of(backend);
  if (!address) return complain(address.error());
  const auto broker = connect_broker(*address);
  auto answer = broker ? ask(*broker, R"({"status": {}})") : Json{};
  if (!answer) return complain(answer.error());
  Json& json = *answer;
  if (!json.is_object()) {
    if (as_json)
      print_out("{}\n", Json{{"running", false}}.dump());
    else
      print_out("no Broker runs; the next call starts one\n");
    return 1;
  }
  if (as_json) {
    json["running"] = true;
    print_out("{}\n", printable_json(json.dump(2)));
    return 0;
  }
  print_out("Broker {}: pid {}, for {} s, {} connections\n", PCTX_VERSION, json.value("pid", 0),
            json.value("seconds", 0), json.value("sessions", 0));
  for (const Json& pool : json["pools"]) {
    const std::string environment = pool.value("environment", "");
    print_out("  {} {}: {} waiting, {} being made, {} busy, {} queued; {} calls\n", pool.value("python", ""),
              environment.empty() ? "without packages" : environment, pool.value("waiting", 0), pool.value("making", 0),
              pool.value("busy", 0), pool.value("queued", 0), pool.value("calls", 0));
    for (const auto& [module, why] : pool["left_to_workers"].items())
      print_out("    {} is imported by each Worker: {}\n", printable_path(module),
                printable_path(why.is_string() ? why.get<std::string>() : ""));
  }
  return 0;
}

// Waits until it is gone: whoever starts the next one must not find this one's lock.
int stop_broker(const std::string& backend, bool quiet) {
  const auto address = address_of(backend);
  if (!address) return complain(address.error());
  const auto broker = connect_broker(*address);
  if (!broker) {
    if (!quiet) print_out("no Broker runs\n");
    return 0;
  }
  const int pid = broker_pid(*broker);
  const Fd pidfd{pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1};
  (void)wire::send(broker->get(), R"({"stop": {}})");
  if (pid ==
      0) {  // systemd answered and starts a Broker, which gets the message and closes the connection when it leaves
    pollfd closed{broker->get(), POLLIN, 0};
    (void)::poll(&closed, 1, kAnswerMillis);
  }
  pollfd gone{pidfd.get(), POLLIN, 0};
  if (pidfd && ::poll(&gone, 1, kAnswerMillis) == 0) {
    (void)abi::pidfd_send_signal(pidfd.get(), SIGKILL);
    (void)::poll(&gone, 1, kAnswerMillis);
  }
  if (!quiet) print_out("stopped\n");
  return 0;
}

int start_broker(const Words& words, const BrokerOptions& options, bool foreground) {
  enter_delegated_scope(words.all);
  const auto address = broker_address(PCTX_VERSION);
  if (!address) return complain(address.error());
  auto inherited = inherit_broker(*address);
  if (!inherited) return complain(inherited.error());
  if (*inherited) return serve_here(*address, std::move(**inherited), options);
  if (!foreground) return serve_behind(*address, options);
  auto bound = bind_broker(*address);
  if (!bound) return complain(bound.error());
  if (!*bound) return complain(unavailable("a Broker runs already", "stop it with 'pctx-sandbox stop'"));
  return serve_here(*address, std::move(**bound), options);
}

// What a caller needs to know of the Broker that it asked for.
int reach_backend(const std::string& name, const backend::Wanted& wanted, bool as_json) {
  const auto choice = backend::choose(name);
  if (!choice) return complain(choice.error());
  const auto reached = choice->backend->reach(wanted);
  if (!reached) return complain(reached.error());
  if (as_json) {
    print_out("{}\n", Json{{"backend", choice->backend->name},
                           {"reason", choice->reason},
                           {"socket", reached->address.socket},
                           {"uid", reached->address.uid.value_or(::geteuid())},
                           {"user", reached->user.value_or(reached->address.uid.value_or(::geteuid()))},
                           {"support", {reached->support, reached->support_seen}},
                           {"lent", {reached->lent, reached->lent_seen}},
                           {"notices", reached->notices},
                           {"limits", reached->limits}}
                          .dump());
    return 0;
  }
  for (const std::string& notice : reached->notices) say(notice);
  print_out("{}: {}\n", choice->backend->name, reached->address.socket);
  return 0;
}

}  // namespace

void add_serve(Verb program, const Words& words, int& status) {
  struct Options {
    bool foreground = false, json = false, inside = false;
    long idle = 600;
    std::size_t workers = BrokerOptions{}.max_workers;
    std::string memory;
    std::string backend;
    std::vector<std::string> lend;
  };
  const auto options = std::make_shared<Options>();
  const auto add_backend = [options](const Verb& verb, const char* means) {
    verb.option("--backend", options->backend, {.type = "BACKEND", .means = means});
  };
  const Verb serve = program.add("serve", "Start the Broker, which keeps Workers ready for @sandbox");
  serve.flag("--foreground", options->foreground, "Stay in this terminal until stopped");
  serve.option("--idle", options->idle,
               {.means = "Leave after this many seconds without a call", .shows_default = true});
  serve.option("--max-workers", options->workers,
               {.means = "Keep at most this many Workers alive, over all pools",
                .shows_default = true,
                .variable = "PCTX_SANDBOX_MAX_WORKERS",
                .mistake = [](const std::string& text) {
                  const auto number = parse_count(text);
                  return number && *number > 0 ? std::string{}
                                               : fmt::format("'{}' is not a whole number above 0", text);
                }});
  serve.option("--memory-budget", options->memory,
               {.means = "Add no Worker while pools use this much memory (4G); half of the machine's unless given",
                .variable = "PCTX_SANDBOX_MEMORY_BUDGET",
                .mistake = [](const std::string& text) {
                  const auto size = parse_size(text);
                  return size && *size > 0 ? std::string{} : size ? "it must not be 0" : size.error().sentence();
                }});
  add_backend(serve, "Start that of a backend: auto, namespaces, podman or lima (default namespaces)");
  serve.option("--lend", options->lend,
               {.type = "DIR", .means = "A folder that its boxes need beside the system's; repeatable"});
  serve.flag("--json", options->json, "With --backend: print where it answers as one JSON object");
  serve.flag("--inside", options->inside, "As the first process of a container whose folder guards the socket");
  const auto broker_options = [options] {
    BrokerOptions chosen;
    chosen.idle_exit = std::chrono::seconds{options->idle};
    chosen.inside = options->inside;
    chosen.max_workers = options->workers;
    if (!options->memory.empty()) chosen.memory_budget = *parse_size(options->memory);
    return chosen;
  };
  serve.act(status, [&words, options, broker_options]() -> Result<int> {
    if (!options->backend.empty()) return reach_backend(options->backend, {PCTX_VERSION, options->lend}, options->json);
    const auto start = [&] { return start_broker(words, broker_options(), options->foreground); };
    return options->inside && ::getpid() == 1 ? serve_as_init(start) : start();
  });
  const Verb show = program.add("status", "Show the Broker, its pools and Workers");
  show.flag("--json", options->json, "As JSON");
  add_backend(show, "The Broker of this backend (default namespaces)");
  show.act(status, [options]() -> Result<int> { return show_broker_status(options->backend, options->json); });
  const Verb stop = program.add("stop", "Stop the Broker and everything it runs");
  add_backend(stop, "The Broker of this backend (default namespaces)");
  stop.act(status, [options]() -> Result<int> { return stop_broker(options->backend, false); });
  const Verb restart = program.add("restart", "Stop the Broker and start a new one");
  add_backend(restart, "The Broker of this backend (default namespaces)");
  restart.act(status, [options, broker_options]() -> Result<int> {
    if (const int stopped = stop_broker(options->backend, true); stopped != 0) return stopped;
    return options->backend.empty() ? start_broker({.all = {"serve"}}, broker_options(), false)
                                    : reach_backend(options->backend, {PCTX_VERSION, {}}, false);
  });
}

}  // namespace pctx::cli
