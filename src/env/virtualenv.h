// A virtualenv that the user names: what it is made of, and what of the host a box must have so that its interpreter
// runs there. Lent are the virtualenv's own parts, not what else lies in its folder, and of an interpreter outside /usr
// its programs and libraries.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"

namespace pctx::env {

struct Virtualenv {
  std::string path;     // on the host, links resolved
  std::string place;    // in the box
  std::string program;  // the interpreter, on the host, links resolved
  std::string version;  // "3.11.2", as its pyvenv.cfg has it
  std::vector<Bind> lent;

  std::string python() const { return place + "/bin/python"; }
};

// Nothing of it is run: a guest may have made it.
Result<Virtualenv> open_virtualenv(const std::string& path);

// Lends it, and sets VIRTUAL_ENV and PATH unless the policy does. Read-only, also where it lies in a folder that the
// policy lends to be written.
void lend_virtualenv(Policy& policy, const Virtualenv& venv);

// Where the box has it: where the host has it, but for folders that every box has of its own. Pure.
std::string place_of_virtualenv(const std::string& path);
// The value of a key of pyvenv.cfg, empty if it is not there. Pure.
std::string venv_setting(std::string_view config, std::string_view key);

}  // namespace pctx::env
