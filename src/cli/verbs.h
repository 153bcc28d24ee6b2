// One file per verb; each adds its own options and returns the exit status.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/verb.h"

namespace pctx::cli {

// Exit statuses of our own; the guest's are passed on as they are.
inline constexpr int kFailed = 125;

// One line on stderr, with our name in front of it.
void say(const std::string& line);
void say(const Error& error);
// One sentence on stderr, and the status that belongs to the error.
int complain(const Error& error);

// What stood behind "--", split off before parsing: it is never an option of ours.
struct Words {
  std::vector<std::string> options;
  std::vector<std::string> command;
  bool literal = false;
  std::vector<std::string> all;  // as typed, without the program's name

  // Options are added for the verb in use only: describing all of them takes longer than starting a box's process.
  bool wants(std::string_view verb) const;
};

// Rootless with cgroup v2: starts us anew inside a scope that the user's systemd delegates to us, so that limits bind
// by cgroups. Returns if there is nothing to gain or nobody to ask.
void enter_delegated_scope(const std::vector<std::string>& words);

// The exit status of a `run` line that can be read without describing its options; nothing if it cannot.
std::optional<int> run_plain(const Words& words);

// Describes the verbs, reads the line and does what it says.
int obey(const Words& words);

void add_run(Verb program, const Words& words, int& status);
void add_env(Verb program, const Words& words, int& status);
void add_explain(Verb program, const Words& words, int& status);
void add_doctor(Verb program, const Words& words, int& status);
void add_selfcheck(Verb program, const Words& words, int& status);
void add_shell(Verb program, const Words& words, int& status);
void add_apparmor(Verb program, int& status);
void add_sandbubble(Verb program, int& status);
void add_setup(Verb program, int& status);
void add_lend(Verb program, int& status);
void add_carry(Verb program, const Words& words, int& status);
void add_serve(Verb program, const Words& words, int& status);
void add_completions(Verb program, int& status);

}  // namespace pctx::cli
