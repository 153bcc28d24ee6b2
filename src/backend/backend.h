// What makes boxes, by name. A backend has a folder or a file here and one line in `backends()`; whoever wants boxes
// reaches a Broker through it and need not know which one it is.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "broker/address.h"

namespace pctx::backend {

// Whether this host has what a backend needs. Nothing of ours changes by it; a backend's own program may make its
// folders when it is asked.
struct Standing {
  bool usable = false;
  std::string why;  // one sentence: what it runs on, or what is missing
  std::string fix;  // the command that helps, possibly empty
};

struct Wanted {
  std::string version;            // of this program: Brokers of two versions live side by side
  std::vector<std::string> lent;  // folders of the host that boxes need beside the system's: an interpreter's prefix
};

// Where a Broker answers, and where it has what callers must hand to it by name.
struct Reached {
  BrokerAddress address;
  std::string support;       // folder for our guest code on the host; empty: any folder of the host will do
  std::string support_seen;  // the same folder as the Broker sees it
  std::string lent;          // folder for copies of lent folders on the host; empty: they are lent as they are
  std::string lent_seen;
  std::vector<std::string> as_they_are;  // folders and files of the host that its boxes can have without a copy
  std::optional<uid_t> user = {};        // whose copies must be, where that is not who answers at the address
  std::vector<std::string> notices;      // for people: what was built, what is not bounded
  std::string limits;                    // what bounds all its boxes together, in words; empty: nothing
};

// One `pctx-sandbox` command inside.
struct Command {
  std::vector<std::string> words;                              // after the program's name
  std::vector<std::pair<std::string, std::string>> variables;  // of its environment
  bool terminal = false;
  bool network = false;  // it has an allow-list
};

struct Backend {
  std::string_view name;
  std::string_view means;
  Standing (*look)();
  // Where its Broker listens, whether or not it runs.
  Result<BrokerAddress> (*address)(const std::string& version);
  // Returns once its Broker answers; starts what has to be started, repairs what can be repaired.
  Result<Reached> (*reach)(const Wanted& wanted);
  // Exit status of a command that runs inside, with our standard streams; nullptr where "inside" is here.
  Result<int> (*execute)(const Wanted& wanted, const Command& command);
};

std::span<const Backend> backends();
// By its name; an error lists the names.
Result<const Backend*> find(std::string_view name);

struct Choice {
  const Backend* backend = nullptr;
  std::string reason;
};
// What "auto" comes to: namespaces, or Podman where the host refuses them and Podman works.
Choice decide(const Standing& namespaces, const Standing& podman);
// "auto" is decided on what this host gives; any other name is taken at its word.
Result<Choice> choose(std::string_view name);
// What PCTX_SANDBOX_BACKEND says, else "auto".
std::string named_by_caller();

}  // namespace pctx::backend
