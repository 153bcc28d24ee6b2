#include "net/host_config.h"

#include <algorithm>

#include "base/units.h"
#include "policy/host_name.h"

namespace pctx::net {
namespace {

constexpr std::size_t kMostServers = 3, kMostSearch = 6, kMostHosts = 65536, kMostAddresses = 16;

// The words of the next line, comments taken off; false at the end of the text.
bool next_line(std::string_view& text, std::string_view comments, std::vector<std::string_view>& words) {
  if (text.empty()) return false;
  std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  line = line.substr(0, line.find_first_of(comments));
  words.clear();
  for (;;) {
    const std::size_t first = line.find_first_not_of(" \t\r\v\f");
    if (first == std::string_view::npos) return true;
    line.remove_prefix(first);
    words.push_back(line.substr(0, line.find_first_of(" \t\r\v\f")));
    line.remove_prefix(words.back().size());
  }
}

}  // namespace

ResolverConfig read_resolv_conf(std::string_view text) {
  ResolverConfig config;
  std::vector<std::string_view> words;
  while (next_line(text, "#;", words)) {
    if (words.size() < 2) continue;
    if (words[0] == "nameserver" && config.servers.size() < kMostServers) {
      // A zone (fe80::1%eth0) is dropped with its address: it means an interface that a name does not survive.
      if (const auto address = parse_ip(words[1])) config.servers.push_back(*address);
    } else if (words[0] == "search" || words[0] == "domain") {
      config.search.clear();
      for (std::size_t i = 1; i < words.size() && config.search.size() < kMostSearch; ++i)
        if (std::string name = normal_name(words[i]); !name.empty()) config.search.push_back(std::move(name));
    } else if (words[0] == "options") {
      // Its patience (timeout, attempts) is ours to choose: a guest waits for the answer.
      for (const std::string_view word : words)
        if (const auto dots = word.starts_with("ndots:") ? parse_count(word.substr(6)) : Result<std::uint64_t>{Error{}})
          config.dots = static_cast<unsigned>(std::min<std::uint64_t>(*dots, 15));
    }
  }
  if (config.servers.empty()) config.servers.push_back(*parse_ip("127.0.0.1"));  // as resolv.conf(5) has it
  return config;
}

std::vector<std::string> ResolverConfig::candidates(const std::string& name) const {
  std::vector<std::string> out;
  if (static_cast<unsigned>(std::count(name.begin(), name.end(), '.')) < dots)
    for (const std::string& domain : search)
      if (std::string full = name + "." + domain; full.size() <= kMaxHostName) out.push_back(std::move(full));
  out.push_back(name);
  return out;
}

HostTable read_hosts(std::string_view text) {
  HostTable table;
  std::vector<std::string_view> words;
  while (next_line(text, "#", words)) {
    const auto address = words.size() < 2 ? std::nullopt : parse_ip(words[0]);
    if (!address) continue;
    for (std::size_t i = 1; i < words.size() && table.size() < kMostHosts; ++i)
      if (std::string name = normal_name(words[i]); !name.empty()) {
        auto& addresses = table[std::move(name)];
        if (addresses.size() < kMostAddresses) addresses.push_back(*address);
      }
  }
  return table;
}

}  // namespace pctx::net
