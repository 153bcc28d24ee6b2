// One command of ours inside the container, with the caller's streams.
#include <poll.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "backend/podman/podman.h"
#include "net/door.h"
#include "sys/files.h"
#include "sys/process.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace pctx::backend::podman {

std::vector<std::string> exec_words(const Place& place, const Command& command, const std::string& hangs_by) {
  std::vector<std::string> words{sys::find_program("podman"), "exec", "--interactive"};
  if (command.terminal) words.emplace_back("--tty");
  words.insert(words.end(), {"--env", hangs_by});
  for (const auto& [variable, value] : command.variables)
    words.insert(words.end(), {"--env", fmt::format("{}={}", variable, value)});
  words.insert(words.end(), {place.container, kProgramInside});
  words.insert(words.end(), command.words.begin(), command.words.end());
  return words;
}

Result<int> execute(const Wanted& wanted, const Command& command) {
  const Reached reached = PCTX_TRY(reach(wanted));
  const Place place = PCTX_TRY(find_place());
  if (place.remote) return execute_remotely(place, command);
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != sizeof word) return os_error("no random numbers");
  const std::string name = fmt::format("door-{:016x}.sock", word);
  // Its network, and the string by which it hangs: if this process dies, the command inside dies at once.
  net::Door door = PCTX_TRY(net::Door::open(sys::join(place.run, name), place.uid, place.gid));
  std::vector<std::string> words = exec_words(place, command, fmt::format("PCTX_SANDBOX_DOOR={}/{}", kRunInside, name));
  std::vector<char*> argv;
  for (std::string& each : words) argv.push_back(each.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  if (const int code = ::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ); code != 0)
    return os_error("cannot start podman", code);
  const Fd ended{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  bool open = true;
  for (;;) {
    pollfd ready[] = {{ended.get(), POLLIN, 0}, {open ? door.fd() : -1, POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0 && errno != EINTR) break;
    if (ready[1].revents != 0) open = door.serve();
    if (ready[0].revents != 0) break;
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace pctx::backend::podman
