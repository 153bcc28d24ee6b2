#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "backend/tether.h"
#include "base/print.h"
#include "cli/selfcheck_probes.h"
#include "cli/verbs.h"
#include "net/door.h"

namespace {

using namespace pctx::cli;

// Everything before the first "--" is ours to read, everything behind it is the guest's.
Words split_words(int argc, char** argv) {
  Words words;
  for (int i = 1; i < argc; ++i) {
    words.all.emplace_back(argv[i]);
    if (!words.literal && std::string_view{argv[i]} == "--")
      words.literal = true;
    else
      (words.literal ? words.command : words.options).emplace_back(argv[i]);
  }
  // Typed in front of a whole `run` line; a command of that name stands behind "--".
  if (words.options.size() > 1 && words.options[0] == "explain" && words.options[1] == "run")
    words.options.erase(words.options.begin() + 1);
  return words;
}

// A caller that closed its standard streams would make us open the box's pipes as 0, 1 or 2. Standard output stays one
// that cannot be written: what somebody has asked for must not vanish without a word.
void open_standard_streams() {
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
}

// Nothing is left to tidy: the kernel takes memory back faster than destructors do.
[[noreturn]] void leave(int status) {
  pctx::flush();
  // Words that nobody could read are no success; a reader that has gone wanted no more of them.
  if (const int code = pctx::print_failure(); code != 0 && status == 0 && code != EPIPE)
    status = complain(pctx::os_error("cannot write to standard output", code));
  (void)std::fflush(nullptr);
  ::_exit(status);
}

// In a container without network: relays run outside, and who started us holds the other end of the string. The Broker
// outlives its callers, a run does not.
int enter_door(const Words& words) {
  const char* path = std::getenv("PCTX_SANDBOX_DOOR");
  if (path == nullptr || *path == '\0') return 0;
  if (path == std::string_view{pctx::net::kNoDoor}) {
    pctx::net::be_without_door();
    return 0;
  }
  const bool serves = !words.options.empty() && words.options[0] == "serve";
  const auto entered = pctx::net::enter_door(path, !serves);
  ::unsetenv("PCTX_SANDBOX_DOOR");
  // Without a door: somebody typed `podman start` or `podman exec`. All works but a network by name.
  return entered || entered.error().code == ENOENT || entered.error().code == ECONNREFUSED ? 0
                                                                                           : complain(entered.error());
}

// On another machine, who started us holds nothing of ours but a string.
int take_string() {
  const char* path = std::getenv(pctx::backend::kTether);
  if (path == nullptr || *path == '\0') return 0;
  const auto hangs = pctx::backend::hang_by_a_string(path);
  ::unsetenv(pctx::backend::kTether);
  return hangs ? 0 : complain(hangs.error());
}

}  // namespace

// What can still be thrown here is a mistake of ours or an empty memory: both may end us.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
  // A caller that ignores it would have the kernel wait for our children in our place, and us wait for ever.
  (void)std::signal(SIGCHLD, SIG_DFL);
  // A caller's `ulimit -f` is for us to talk about, not to end by.
  (void)std::signal(SIGXFSZ, SIG_IGN);
  open_standard_streams();
  // The guest of a self-check; no option, since nobody but the check types it.
  if (argc > 3 && std::string_view{argv[1]} == "selfcheck" && argv[2] == kInside)
    ::_exit(run_inside({argv + 3, static_cast<std::size_t>(argc) - 3}));
  Words words = split_words(argc, argv);
  if (const int failed = enter_door(words); failed != 0) return failed;
  if (const int failed = take_string(); failed != 0) return failed;
  if (const auto status = run_plain(words)) leave(*status);
  leave(obey(words));
}
