// Where packages come from: the host's own settings (UV_* variables, uv.toml, PIP_* variables, pip.conf, netrc,
// proxies, certificates), translated to what uv gets in its box. Pure but for the two questions it asks about files.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"

namespace pctx::env {

struct HostSettings {
  std::map<std::string, std::string> variables;  // of the caller
  std::function<std::optional<std::string>(const std::string&)> read;
  std::function<bool(const std::string&)> exists;
};

struct IndexSettings {
  std::vector<std::pair<std::string, std::string>> variables;  // for uv
  std::vector<Bind> binds;                                     // files that these variables name
  bool no_index = false;
  std::vector<std::string> addresses;  // of indexes, of pages with links, of proxies
  bool names_index = false;            // one of them is an index
  std::vector<std::string> secrets;    // never to be shown; they are in `variables` or in lent files
  std::string credentials;             // where credentials were found, in words; empty where there are none
};

// With `source` the code of packages runs in the box: netrc files are then kept out, and settings that hold credentials
// are an error.
Result<IndexSettings> index_settings(const HostSettings& host, bool source);

// The text without the secrets, and without what stands before the @ of any address.
std::string scrub(std::string_view text, const std::vector<std::string>& secrets);

// The caller's environment and file system.
HostSettings settings_of_this_host();

// The values of [global] and [install], later ones over earlier ones; keys with dashes, lists on one line. Pure.
std::map<std::string, std::string> parse_pip_conf(std::string_view text);

}  // namespace pctx::env
