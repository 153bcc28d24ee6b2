// One command on another machine, with our standard streams. What a remote shell starts outlives the shell: a second
// command over there holds it by a string, and that one ends when we do.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace pctx::backend {

// In the environment of the command that hangs by it: where it connects.
inline constexpr const char* kTether = "PCTX_SANDBOX_TETHER";

// A name below `folder` that nobody can guess.
Result<std::string> random_socket(const std::string& folder);

// What holds: the other side ends when the string is closed. Its words are kept from being said to nobody.
struct Tether {
  Fd string;
  Fd words;
};

// Here: runs `command`, which is `pctx-sandbox carry --hold SOCKET` over there, until what is returned is closed.
Result<Tether> hold_outside(const std::vector<std::string>& command);
// Here: runs `command` to its end, and returns its exit status.
Result<int> run_with_our_streams(const std::vector<std::string>& command);

// There: lets one process connect to `path`, and keeps it until standard input ends. Says "1" until it has come.
Result<void> hold_by_a_string(const std::string& path);
// There: from here on the kernel kills this process when whoever holds it is gone.
Result<void> hang_by_a_string(const std::string& path);

}  // namespace pctx::backend
