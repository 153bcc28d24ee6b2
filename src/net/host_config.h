// What the host's /etc/resolv.conf and /etc/hosts say. Pure: the texts are read by others.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "policy/ip.h"

namespace pctx::net {

struct ResolverConfig {
  std::vector<IpAddress> servers;   // at most three, as everywhere
  std::vector<std::string> search;  // normal names
  unsigned dots = 1;                // names with fewer dots are tried below `search` first

  // What to ask for a name, in this order, until one exists.
  std::vector<std::string> candidates(const std::string& name) const;
};

ResolverConfig read_resolv_conf(std::string_view text);

using HostTable = std::map<std::string, std::vector<IpAddress>, std::less<>>;
HostTable read_hosts(std::string_view text);

}  // namespace pctx::net
