// What the resolver decided, read from its lock (PEP 751) with a strict eye for the three things that are recorded:
// names, versions and hashes. Addresses are left behind. And what a distribution provides, from its own records. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pctx::env {

struct Package {
  std::string name;  // normalised
  std::string version;
  std::string sha256;   // of the wheel or source distribution; empty where the index tells none
  bool source = false;  // built here from a source distribution
};

std::vector<Package> packages_of_lock(std::string_view pylock);

// The modules that can be imported once a distribution is installed: from top_level.txt where there is one, else from
// the paths of its RECORD. Identifiers only, sorted; private ones and test folders only where there is nothing else.
std::vector<std::string> modules_of(std::string_view top_level, std::string_view record);

}  // namespace pctx::env
