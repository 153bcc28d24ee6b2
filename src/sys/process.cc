#include "sys/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>

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

Result<Finished> run_program(const std::vector<std::string>& argv, int input, std::size_t limit, Millis timeout) {
  auto [out, out_end] = PCTX_TRY(make_pipe());
  auto [err, err_end] = PCTX_TRY(make_pipe());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (input >= 0)
    ::posix_spawn_file_actions_adddup2(&actions, input, 0);
  else
    ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out_end.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, err_end.get(), 2);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);  // an interrupt at the terminal is ours to handle
  std::vector<char*> words;
  words.reserve(argv.size() + 1);
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t pid = -1;
  const int code = ::posix_spawn(&pid, argv[0].c_str(), &actions, &attributes, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (code != 0) return os_error(fmt::format("cannot start {}", argv[0]), code);
  out_end.reset();
  err_end.reset();
  Finished finished;
  const Fd ended{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // Its end counts, not that of its pipes: whatever it leaves running may hold them.
  pollfd ready[] = {{out.get(), POLLIN, 0}, {err.get(), POLLIN, 0}, {ended.get(), POLLIN, 0}};
  const auto drain = [&](pollfd& from, std::string& to) {
    std::array<char, 4096> buffer;
    const ssize_t got = ::read(from.fd, buffer.data(), buffer.size());
    if (got <= 0) {
      from.fd = -1;
      return;
    }
    to.append(buffer.data(), std::min(static_cast<std::size_t>(got), limit - std::min(limit, to.size())));
  };
  for (;;) {
    const auto left = std::chrono::ceil<Millis>(deadline - std::chrono::steady_clock::now()).count();
    const int events = left > 0 ? ::poll(ready, 3, static_cast<int>(left)) : 0;
    if (events < 0 && errno == EINTR) continue;
    if (events <= 0) {
      (void)::kill(pid, SIGKILL);
      (void)wait_for(pid);
      return unavailable(
          fmt::format("{} {} did not end within {} s", argv[0], argv.size() > 1 ? argv[1] : "", timeout.count() / 1000),
          "try it by hand");
    }
    if ((ready[0].revents & (POLLIN | POLLHUP)) != 0) drain(ready[0], finished.out);
    if ((ready[1].revents & (POLLIN | POLLHUP)) != 0) drain(ready[1], finished.err);
    const bool nothing_read = ((ready[0].revents | ready[1].revents) & POLLIN) == 0;
    if ((ready[2].revents & POLLIN) != 0 && nothing_read) break;
  }
  const int status = wait_for(pid);
  finished.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

std::uint64_t allow_descriptors() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return UINT64_MAX;
  files.rlim_cur = files.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &files);
  return files.rlim_max;
}

std::string find_program(std::string_view name) {
  const char* search = std::getenv("PATH");
  for (std::string_view folder : split(search != nullptr ? search : "", ':')) {
    std::string path = join(folder, name);
    if (folder.starts_with('/') && ::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

}  // namespace pctx::sys
