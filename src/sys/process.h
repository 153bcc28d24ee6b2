// A trusted program of the host, run for what it prints or does: the host's interpreter about itself, Podman. Never for
// a guest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace pctx::sys {

// Standard output of a program that exits with 0; anything else is an error that says what it was. Its standard input
// is empty, what it says on standard error is dropped.
Result<std::string> output_of(const std::vector<std::string>& argv, std::size_t limit, Millis timeout);

// How a program ended, and the first `limit` bytes of each of what it said. It has no session and no terminal of ours.
struct Finished {
  int status = 0;  // of the exit; 128+N after signal N
  std::string out, err;
};
// `input` is its standard input, -1 for none. An error: it cannot be started, or did not end in time and was killed.
Result<Finished> run_program(const std::vector<std::string>& argv, int input, std::size_t limit, Millis timeout);

// As many descriptors as the hard limit allows, which is returned. Also of use to whoever opens few: those that are on
// their way through sockets count per user, guests with our uid included, and one more passes while they are fewer than
// its sender may have open.
std::uint64_t allow_descriptors();

// The first program of that name on the PATH; empty if there is none.
std::string find_program(std::string_view name);

}  // namespace pctx::sys
