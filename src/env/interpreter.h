// A Python on the host: which one it is. The host's own interpreter is trusted and is asked by running it; an
// Environment's never is.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "policy/policy.h"

namespace pctx::env {

struct Interpreter {
  std::string executable;      // of the base installation, links resolved, never a virtual environment's
  std::string prefix;          // of the base installation
  std::string version;         // "3.11.2"
  std::string implementation;  // "cpython"
  std::string platform;        // "linux-x86_64"
  std::string libc;            // "glibc 2.36", or empty

  // "3.11", as folders are named after it.
  std::string minor() const;
  // Whether a box has it anyway, without its prefix being lent.
  bool is_system() const;
};

// Asks the interpreter at `path` (a path, or a name to be found on the PATH); `memory` is a folder in which answers are
// kept, possibly empty.
Result<Interpreter> ask_interpreter(const std::string& path, const std::string& memory);

// Whether the file is a program of the kernel's own format, not a script.
bool is_elf(const std::string& path);

// The system's, else the first real one on the PATH; with `requires_python`, the first that satisfies it.
Result<Interpreter> choose_interpreter(std::string_view requires_python, const std::string& memory);

// What the interpreter printed about itself, one fact a line. Pure.
Result<Interpreter> parse_interpreter(std::string_view lines);

// Lends it to a box, where it is not below /usr.
void lend_interpreter(Policy& policy, const Interpreter& interpreter);

}  // namespace pctx::env
