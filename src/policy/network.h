// What a box may reach by name: the rules, how people write them, and which rule a connection falls under. Pure; the
// relay (net/relay.h) asks on every connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "policy/ip.h"
#include "policy/names.h"

namespace pctx {

struct NetRule {
  enum class Kind { name, wildcard, any, address } kind = Kind::name;
  std::string name;  // name and wildcard: lower-case, A-labels; of "*.example.org" this is "example.org"
  IpPrefix address;  // address only
  std::vector<std::uint16_t> ports{80, 443};

  bool operator==(const NetRule&) const = default;
};

struct NetworkPolicy {
  std::vector<NetRule> rules;
  std::vector<IpPrefix> open_private;        // ranges that are closed unless they stand here
  std::optional<std::uint64_t> rate;         // bytes per second, in each direction
  std::optional<std::uint64_t> bytes;        // that may leave, over all connections together
  std::optional<std::uint64_t> connections;  // open at once

  bool operator==(const NetworkPolicy&) const = default;
};

// Where names get their addresses from, inside a box. For measuring devices (RFC 2544), so that no host that somebody
// wants to reach has one of them; and a ULA prefix.
inline constexpr IpPrefix kSyntheticRange4{{false, {198, 18}}, 15};
inline constexpr IpPrefix kSyntheticRange6{{true, {0xfd, 0x70, 0x63, 0x74, 0x78}}, 64};

inline constexpr std::size_t kMaxNetRules = 256;
inline constexpr std::size_t kMaxNetPorts = 16;  // distinct ports of all rules together: a listener each
inline constexpr std::uint64_t kMaxNetConnections = 256;

// One entry of the list: NAME[:PORT], *.NAME[:PORT], *[:PORT], V4[/LENGTH][:PORT], [V6[/LENGTH]][:PORT].
Result<NetRule> parse_net_rule(std::string_view entry);
// Comma-separated entries, as after --network allow:; never empty.
Result<std::vector<NetRule>> parse_net_rules(std::string_view entries);
// One range of --network-private.
Result<IpPrefix> parse_private_range(std::string_view text);
// The entry as parse_net_rule takes it; ports that are the usual two are left out. A rule of several other ports
// (none that parse_net_rule makes) is written with the first.
std::string to_string(const NetRule& rule);

// Everything about the lists and figures that one entry alone does not show.
Result<void> validate(const NetworkPolicy& policy, const Names& names = {});

// Distinct ports of all rules, ascending: where a box listens.
std::vector<std::uint16_t> listening_ports(const NetworkPolicy& policy);

// `name` is normal (normal_name). A name that any rule names, on whatever port, may be resolved.
bool may_resolve(const NetworkPolicy& policy, std::string_view name);
// The rule that lets a connection through, most exact kind first; nullptr: none.
const NetRule* find_rule(const NetworkPolicy& policy, std::string_view name, std::uint16_t port);
const NetRule* find_rule(const NetworkPolicy& policy, const IpAddress& address, std::uint16_t port);
// Whether a range of --network-private holds the address. A literal of the list needs none: it names itself.
bool is_opened(const NetworkPolicy& policy, const IpAddress& address);

}  // namespace pctx
