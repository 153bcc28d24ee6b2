#include "backend/carried.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <functional>

#include <fmt/format.h>

#include "backend/namespaces.h"
#include "sys/files.h"
#include "sys/process.h"
#include "wire/carrier.h"

namespace pctx::backend {
namespace {

constexpr std::size_t kMostWords = 16_KiB;
constexpr int kLooks = 6000;  // at a Broker that starts, each five milliseconds after the one before

struct LeadingCommand {
  pid_t pid = -1;
  Fd in, out;  // our ends
  Fd words;    // what it says on standard error: the first of it
};

// A file that cannot grow: nobody reads it until something is wrong, and the command may say as much as it likes.
Fd open_words() {
  Fd file{::memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (file && (::ftruncate(file.get(), kMostWords) != 0 || ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW) != 0))
    file.reset();
  return file;
}

Result<LeadingCommand> start(const std::vector<std::string>& words) {
  LeadingCommand command;
  auto [their_in, our_out] = PCTX_TRY(sys::make_pipe());
  auto [our_in, their_out] = PCTX_TRY(sys::make_pipe());
  command.words = open_words();
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  command.pid = ::fork();
  if (command.pid < 0) return os_error("cannot start the command that leads to the Broker");
  if (command.pid == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)::dup2(their_in.get(), 0);
    (void)::dup2(their_out.get(), 1);
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)::dup2(command.words ? command.words.get() : null, 2);
    ::execvp(argv[0], argv.data());
    const std::string sorry = fmt::format("cannot run {}", words[0]);
    (void)!::write(2, sorry.data(), sorry.size());
    ::_exit(127);
  }
  command.in = std::move(our_in);
  command.out = std::move(our_out);
  return command;
}

// Without the greeting, what it has complained of is the cause.
std::string said(const LeadingCommand& command) {
  std::string text(kMostWords, '\0');
  const ssize_t got = command.words ? ::pread(command.words.get(), text.data(), text.size(), 0) : 0;
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  text.resize(std::min(text.size(), text.find('\0')));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void end(LeadingCommand& command) {
  command.in.reset();
  command.out.reset();
  (void)::kill(command.pid, SIGTERM);
  for (int i = 0; i < 100 && ::waitpid(command.pid, nullptr, WNOHANG) == 0; ++i) {
    const timespec pause{0, 20'000'000};
    ::nanosleep(&pause, nullptr);
    if (i == 50) (void)::kill(command.pid, SIGKILL);
  }
}

Result<void> wait_for_broker(const BrokerAddress& address) {
  for (int i = 0; i < kLooks; ++i) {
    if (connect_broker(address)) return {};
    const timespec pause{0, 5'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return unavailable("the Broker of this container does not answer", "look at its log");
}

Result<void> serve(const BrokerAddress& address, Bound bound, const CarriedBy& by,
                   const std::function<void(const Result<void>&)>& ready) {
  (void)sys::allow_descriptors();
  (void)::prctl(PR_SET_NAME, kCarrierProcess);
  const auto unlink = [&] { (void)::unlink(address.socket.c_str()); };  // under the lock: nobody else's
  auto command = start(by.command);
  if (!command) {
    unlink();
    ready(command.error());
    return std::move(command).error();
  }
  auto greeted = wire::greet(command->in.get(), command->out.get(), by.patience);
  if (!greeted) {
    unlink();
    end(*command);
    const std::string words = said(*command);
    Error error = std::move(greeted).error();
    if (!words.empty()) error.what = fmt::format("{} ({})", error.what, words);
    ready(error);
    return error;
  }
  ready({});
  auto served = wire::carry_near(std::move(command->in), std::move(command->out), std::move(bound.listener), by.idle);
  unlink();
  end(*command);
  return served;
}

}  // namespace

Result<void> carry_here(const BrokerAddress& address, const CarriedBy& by) {
  auto bound = PCTX_TRY(bind_broker(address));
  if (!bound) return unavailable(fmt::format("somebody else serves {}", address.socket), "choose another socket");
  return serve(address, *std::move(bound), by, [](const Result<void>&) {});
}

Result<void> carry_behind(const BrokerAddress& address, const CarriedBy& by) {
  auto told = PCTX_TRY(sys::make_pipe());
  const pid_t pid = ::fork();
  if (pid < 0) return os_error("cannot start a process");
  if (pid == 0) {
    ::setsid();
    if (::fork() != 0) ::_exit(0);  // nobody waits for it
    const int null = ::open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) (void)::dup2(null, fd);
    const int kept[] = {0, 1, 2, told.write_end.get()};
    sys::close_all_but(kept);
    const auto tell = [&](const Result<void>& result) {
      const std::string text = result ? "ready" : fmt::format("{}\n\n{}", result.error().what, result.error().hint);
      (void)!::write(told.write_end.get(), text.data(), std::min<std::size_t>(text.size(), 4096));
      told.write_end.reset();
    };
    auto bound = bind_broker(address);
    if (!bound)
      tell(bound.error());
    else if (!*bound)
      tell({});
    else
      (void)serve(address, **std::move(bound), by, tell);
    ::_exit(0);
  }
  (void)::waitpid(pid, nullptr, 0);
  told.write_end.reset();
  const std::string text = PCTX_TRY(sys::read_all(told.read_end.get(), 8192));
  if (text == "ready") return {};
  const std::size_t blank = text.find("\n\n");
  return unavailable(text.empty() ? "the process that leads to the Broker died" : text.substr(0, blank),
                     blank == std::string::npos ? "try again" : text.substr(blank + 2));
}

Result<void> carry_there(const std::string& version, bool inside) {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) {
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !(S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)))
      return usage_error("standard input and output are not the two ends of a stream",
                         "this verb is for programs: see 'pctx-sandbox carry --help'");
  }
  (void)sys::allow_descriptors();
  BrokerAddress address = PCTX_TRY(broker_address(version));
  if (inside)
    PCTX_TRY(wait_for_broker(address));
  else
    address = PCTX_TRY(reach_namespaces({.version = version, .lent = {}})).address;
  Fd in{::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)}, out{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)};
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) (void)::dup2(null, fd);
  PCTX_TRY(wire::greet(in.get(), out.get(), Millis{60'000}));
  (void)::prctl(PR_SET_NAME, kCarrierProcess);
  return wire::carry_far(std::move(in), std::move(out), [&] { return connect_broker(address); });
}

}  // namespace pctx::backend
