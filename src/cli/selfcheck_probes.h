// What the self-check tries: each probe is an attack on something that the check has planted for it, and nothing else.
// The same program runs the same attacks inside the box and, as the control, in an open one: a plain process. There
// every one of them must come through, or it would prove nothing.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "policy/policy.h"

namespace pctx::cli {

// Where the planted things are, by name; text, since it travels on a command line.
using Planted = std::map<std::string, std::string, std::less<>>;

struct Attempt {
  bool through = false;
  std::string seen;  // what stopped it, or what was reached
};
// Of a system call that has just returned.
Attempt by_call(bool succeeded, std::string reached);

// One attack among others in the same box.
struct Probe {
  const char* name;
  const char* tried;
  const char* stopped_by;  // what should
  bool extra;              // only with --extra
  bool network;            // no promise where the guest is on the host's network
  Attempt (*attempt)(const Planted& planted);
};
std::span<const Probe> base_probes();
std::span<const Probe> extra_probes();

// One attack that has a box of its own, because it ends it or because of what is seen after it.
struct Trial {
  const char* name;
  const char* tried;
  const char* stopped_by;
  bool extra;
  void (*tighten)(Policy& policy);  // to a limit that the attack passes
  void (*attack)(const Planted& planted);
  const char* seen;  // when the guest was stopped and ended by itself
};
std::span<const Trial> trials();

// What an attack says when it came through; a guest that is ended before says nothing.
inline constexpr std::string_view kThrough = "through";

// The first words of the command line that makes this program the guest: `selfcheck --inside WHAT [KEY=VALUE...]`.
inline constexpr std::string_view kInside = "--inside";
// WHAT: every probe of the base suite or of both, one line for each: name, "stopped" or "through", what was seen.
inline constexpr std::string_view kBaseProbes = "base", kAllProbes = "all";
int run_inside(std::span<char*> words);

}  // namespace pctx::cli
