// One virtual machine for each user, with a Broker in it: Lima makes the outer wall, our boxes the inner one.
// docs/lima.md says what the machine has and what has been tried.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace pctx::backend::lima {

Standing look();
Result<BrokerAddress> address(const std::string& version);
Result<Reached> reach(const Wanted& wanted);
Result<int> execute(const Wanted& wanted, const Command& command);

inline constexpr Backend kLima{.name = "lima",
                               .means = "boxes in one virtual machine of this user's",
                               .look = look,
                               .address = address,
                               .reach = reach,
                               .execute = execute};

// Where one user's machine is known on the host. The machine has `shared` under the same path.
struct Place {
  std::string instance;
  std::string shared;   // read-write for the machine: guest code, copies, the program
  std::string support;  // below it
  std::string lent;
  std::string program;
  std::string environments;  // read-only for the machine
  std::string callers;       // the socket's name, without the version
};
Result<Place> find_place();

// What a machine is made from.
struct Machine {
  std::string shared, environments;
  std::string image;           // a path or an address; empty: Debian's
  std::string kernel, initrd;  // of the image, where it has no loader of its own
  unsigned cpus = 1;
  std::uint64_t memory = 0;  // bytes
};
// As Lima reads it. No folder of the user's is shared, no port forwarded, no key or variable handed over.
std::string template_text(const Machine& machine);

enum class State { absent, running, stopped, broken };
// From what `limactl list --json` prints: one object on each line.
Result<State> state_of(std::string_view listed, std::string_view instance);

std::string install_command();

}  // namespace pctx::backend::lima
