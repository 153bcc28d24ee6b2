// Where Podman leads to another machine: `podman exec` goes through its API, and its standard streams with it. A socket
// of ours in a shared folder would not.
#include <fmt/format.h>

#include "backend/carried.h"
#include "backend/podman/podman.h"
#include "backend/tether.h"
#include "sys/process.h"

namespace pctx::backend::podman {

Result<void> carry_callers(const Place& place, const BrokerAddress& address) {
  return carry_behind(address, {.command = {sys::find_program("podman"), "exec", "--interactive", place.container,
                                            kProgramInside, "carry", "--inside"}});
}

Result<int> execute_remotely(const Place& place, const Command& command) {
  if (command.network)
    return unavailable("boxes on another machine have no way to the relay of this one: they have no network by name",
                       "run it without --network, or with a backend of this machine");
  const std::string podman = sys::find_program("podman"), socket = PCTX_TRY(random_socket(kRunInside));
  const Tether held = PCTX_TRY(
      hold_outside({podman, "exec", "--interactive", place.container, kProgramInside, "carry", "--hold", socket}));
  return run_with_our_streams(exec_words(place, command, fmt::format("{}={}", kTether, socket)));
}

}  // namespace pctx::backend::podman
