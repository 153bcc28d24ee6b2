// What messages call a part of a policy: its option or, if a file set it, its key there.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace pctx {

// "limits.cpu_time" is --cpu-time, "network.rate" is --net-rate.
inline std::string option_of(std::string_view key) {
  if (key == "network" || key == "network.allow") return "--network";
  if (key == "network.private") return "--network-private";
  std::string option = key.starts_with("network.") ? "--net-" : "--";
  option += key.substr(key.find('.') == key.npos ? 0 : key.find('.') + 1);
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

struct Names {
  std::string file;               // as messages call it
  std::vector<std::string> keys;  // that it set, and no option has replaced

  // "'limits.memory'" or "--memory".
  std::string brief(std::string_view key) const {
    return std::find(keys.begin(), keys.end(), key) == keys.end() ? option_of(key) : fmt::format("'{}'", key);
  }
  // "--policy x.json: 'limits.memory'" or "--memory".
  std::string of(std::string_view key) const {
    std::string name = brief(key);
    return name.front() == '\'' ? fmt::format("{}: {}", file, name) : name;
  }
};

}  // namespace pctx
