#include "backend/tether.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include <fmt/format.h>

#include "broker/address.h"
#include "sys/files.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace pctx::backend {
namespace {

// Podman's service (4.3.1) loses now and then what a program says before anybody listens: it is said again.
constexpr int kAgainMillis = 200;

Result<pid_t> spawn(const std::vector<std::string>& command, const posix_spawn_file_actions_t* actions) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int code = ::posix_spawnp(&pid, argv[0], actions, nullptr, argv.data(), environ);
  if (code != 0) return os_error(fmt::format("cannot start {}", command[0]), code);
  return pid;
}

}  // namespace

Result<std::string> random_socket(const std::string& folder) {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != sizeof word) return os_error("no random numbers");
  return fmt::format("{}/pctx-{:016x}.sock", folder, word);
}

Result<Tether> hold_outside(const std::vector<std::string>& command) {
  auto [their_in, our_out] = PCTX_TRY(sys::make_pipe());
  auto [our_in, their_out] = PCTX_TRY(sys::make_pipe());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, their_in.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, their_out.get(), 1);
  const auto started = spawn(command, &actions);
  ::posix_spawn_file_actions_destroy(&actions);
  PCTX_TRY(started);
  their_in.reset();
  their_out.reset();
  char byte = 0;
  if (::read(our_in.get(), &byte, 1) != 1)
    return unavailable(fmt::format("'{}' does not run what it is told to over there", command[0]),
                       "try it by hand; what it says stands above");
  return Tether{.string = std::move(our_out), .words = std::move(our_in)};
}

Result<int> run_with_our_streams(const std::vector<std::string>& command) {
  const pid_t pid = PCTX_TRY(spawn(command, nullptr));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Result<void> hold_by_a_string(const std::string& path) {
  const auto bound = PCTX_TRY(bind_broker({.folder = "", .socket = path}));
  if (!bound) return unavailable(fmt::format("{} is taken", path), "try again");
  (void)!::write(STDOUT_FILENO, "1", 1);
  Fd held;
  for (;;) {
    pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {held ? -1 : bound->listener.get(), POLLIN, 0}};
    const int count = ::poll(ready, 2, held ? -1 : kAgainMillis);
    if (count < 0 && errno != EINTR) break;
    if (count == 0) (void)!::write(STDOUT_FILENO, "1", 1);
    if (count <= 0) continue;
    if (ready[1].revents != 0) held = Fd{::accept4(bound->listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    char byte;
    if (ready[0].revents != 0 && ::read(STDIN_FILENO, &byte, 1) <= 0) break;
  }
  (void)::unlink(path.c_str());
  (void)::unlink((path + ".lock").c_str());
  return {};
}

Result<void> hang_by_a_string(const std::string& path) {
  static Fd held;  // until the end of this process
  held = PCTX_TRY(connect_broker({.folder = "", .socket = path}));
  // The kernel itself ends us when the other side closes, whatever we are doing; the janitor ends the box then.
  (void)::fcntl(held.get(), F_SETOWN, ::getpid());
  (void)::fcntl(held.get(), F_SETSIG, SIGKILL);
  (void)::fcntl(held.get(), F_SETFL, ::fcntl(held.get(), F_GETFL) | O_ASYNC);
  return {};
}

}  // namespace pctx::backend
