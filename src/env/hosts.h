// Whom a build may talk to: the hosts of the configured indexes, the hosts that are known to hold their files, a
// configured proxy. Pure.
#pragma once

#include <string>
#include <vector>

#include "env/index.h"
#include "net/relay.h"
#include "policy/network.h"

namespace pctx::env {

// The rules for these addresses ("https://host:8443/simple"); what is no address of a host is passed over. Nobody but
// the host's own settings can name loopback, which then means the host's.
std::vector<NetRule> rules_of(const std::vector<std::string>& addresses);

// Empty rules: packages come from folders only.
NetworkPolicy build_network(const IndexSettings& index);

// What a build was refused is where the index's pages led it: uv is the only program in it. True if there is anything
// new. Never to be called for a build that runs the code of packages.
bool learn_hosts(NetworkPolicy& network, const NetworkRecord& record);

}  // namespace pctx::env
