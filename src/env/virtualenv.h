// A virtualenv that the user names: what it is made of, and what of the host a box must have so that its interpreter
// runs there. Lent are the virtualenv's own parts, not what else lies in its folder, and of an interpreter outside /usr
// its programs and libraries.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "env/interpreter.h"
#include "policy/policy.h"

namespace pctx::env {

struct Virtualenv {
  std::string path;   // on the host, links resolved
  std::string place;  // in the box
  Interpreter base;
  std::vector<Bind> lent;

  std::string python() const { return place + "/bin/python"; }
};

// `memory` as for ask_interpreter.
Result<Virtualenv> open_virtualenv(const std::string& path, const std::string& memory);

// Lends it, and sets VIRTUAL_ENV and PATH unless the policy does.
void lend_virtualenv(Policy& policy, const Virtualenv& venv);

// Where the box has it: where the host has it, but for folders that every box has of its own. Pure.
std::string place_of_virtualenv(const std::string& path);
// The value of a key of pyvenv.cfg, empty if it is not there. Pure.
std::string venv_setting(std::string_view config, std::string_view key);

}  // namespace pctx::env
