#include "sys/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <csignal>

#include <fmt/format.h>

#include "base/fd.h"
#include "sys/files.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace pctx::sys {
namespace {

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

Result<std::string> output_of(const std::vector<std::string>& argv, std::size_t limit, Millis timeout) {
  auto [read_end, write_end] = PCTX_TRY(make_pipe());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::vector<char*> words;
  words.reserve(argv.size() + 1);
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t pid = -1;
  const int code = ::posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (code != 0) return os_error(fmt::format("cannot start {}", argv[0]), code);
  write_end.reset();
  std::string text;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (bool open = true; open;) {
    const auto left = std::chrono::ceil<Millis>(deadline - std::chrono::steady_clock::now()).count();
    pollfd ready{read_end.get(), POLLIN, 0};
    std::array<char, 4096> buffer;
    const int events = left > 0 ? ::poll(&ready, 1, static_cast<int>(left)) : 0;
    if (events < 0 && errno == EINTR) continue;
    const ssize_t got = events > 0 ? ::read(read_end.get(), buffer.data(), buffer.size()) : -1;
    if (got < 0 || text.size() + static_cast<std::size_t>(got) > limit) {
      (void)::kill(pid, SIGKILL);
      (void)wait_for(pid);
      return unavailable(fmt::format("{} does not answer", argv[0]), "try it by hand");
    }
    text.append(buffer.data(), static_cast<std::size_t>(got));
    open = got > 0;
  }
  if (const int status = wait_for(pid); !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return unavailable(fmt::format("{} fails", argv[0]), "try it by hand");
  return text;
}

}  // namespace pctx::sys
