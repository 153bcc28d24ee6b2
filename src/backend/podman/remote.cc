// Where Podman leads to another machine: `podman exec` goes through its API, and its standard streams with it. A socket
// of ours in a shared folder would not.
#include <spawn.h>

#include <fmt/format.h>

#include "backend/carried.h"
#include "backend/podman/podman.h"
#include "sys/files.h"
#include "sys/process.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace pctx::backend::podman {
namespace {

std::vector<std::string> inside(const Place& place, const std::vector<std::string>& words) {
  std::vector<std::string> all{sys::find_program("podman"), "exec", "--interactive", place.container, kProgramInside};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

}  // namespace

Result<void> carry_callers(const Place& place, const BrokerAddress& address) {
  return carry_behind(address, {.command = inside(place, {"carry", "--inside"})});
}

Result<Fd> hold_from_outside(const Place& place, const std::string& door) {
  const std::vector<std::string> words = inside(place, {"carry", "--hold", door});
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  auto [their_in, our_out] = PCTX_TRY(sys::make_pipe());
  auto [our_in, their_out] = PCTX_TRY(sys::make_pipe());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, their_in.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, their_out.get(), 1);
  pid_t pid = -1;
  const int code = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (code != 0) return os_error("cannot start podman", code);
  their_in.reset();
  their_out.reset();
  char byte = 0;
  if (::read(our_in.get(), &byte, 1) != 1)
    return unavailable(fmt::format("the container {} does not run what it is told to", place.container),
                       fmt::format("try 'podman exec {} {} --version'", place.container, kProgramInside));
  return std::move(our_out);
}

}  // namespace pctx::backend::podman
