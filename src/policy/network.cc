#include "policy/network.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/units.h"
#include "policy/host_name.h"

namespace pctx {
namespace {

constexpr std::string_view kHowTo =
    "write NAME, *.NAME, * or an address, each with :PORT if it is not 80 and 443, for example api.example.com or "
    "*.example.org:443";
constexpr const char* kBrackets = "write an IPv6 address in brackets, for example [2001:db8::1]:8080";
constexpr const char* kFewer = "name fewer: *.example.org is every name below example.org";

Result<std::uint16_t> parse_port(std::string_view entry, std::string_view text) {
  const auto port = parse_count(text);
  if (!port || *port == 0 || *port > 65535)
    return usage_error(fmt::format("'{}': '{}' is not a port between 1 and 65535", entry, text), std::string{kHowTo});
  return static_cast<std::uint16_t>(*port);
}

// A URL, a path or a sentence: what people paste before they read.
Result<void> check_shape(std::string_view entry) {
  if (entry.empty()) return usage_error("the network list has an empty entry", std::string{kHowTo});
  std::string shown;  // one line, whatever it holds
  for (const char c : entry)
    shown += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c))
                                                              : std::string{c};
  if (shown != entry || entry.find(' ') != std::string_view::npos)
    return usage_error(fmt::format("'{}' holds a blank or a control character", shown), std::string{kHowTo});
  if (entry.find("://") != std::string_view::npos)
    return usage_error(fmt::format("'{}' is a URL, not a host name", entry), std::string{kHowTo});
  if (entry.find_first_of("@?#\\") != std::string_view::npos)
    return usage_error(fmt::format("'{}' is not a host name", entry), std::string{kHowTo});
  return {};
}

struct Split {
  std::string_view host, port;
  bool has_port = false;
};

Result<Split> split_port(std::string_view entry) {
  Split split{entry, {}, false};
  if (entry.starts_with('[')) {
    const std::size_t end = entry.find(']');
    if (end == std::string_view::npos) return usage_error(fmt::format("'{}' lacks the closing ']'", entry), kBrackets);
    split.host = entry.substr(1, end - 1);
    const std::string_view rest = entry.substr(end + 1);
    if (!rest.empty() && rest.front() != ':')
      return usage_error(fmt::format("'{}' has something other than :PORT behind the ']'", entry), kBrackets);
    split.has_port = !rest.empty();
    if (split.has_port) split.port = rest.substr(1);
    return split;
  }
  const std::size_t colon = entry.find(':');
  if (colon == std::string_view::npos) return split;
  if (entry.find(':', colon + 1) != std::string_view::npos)
    return usage_error(fmt::format("'{}' has more than one ':'", entry), kBrackets);
  return Split{entry.substr(0, colon), entry.substr(colon + 1), true};
}

Result<IpPrefix> parse_literal(std::string_view entry, std::string_view host) {
  const IpPrefix prefix = PCTX_TRY(parse_prefix(host));
  const auto meets = [&](const IpPrefix& range) {
    return range.contains(prefix.address) || prefix.contains(range.address);
  };
  const auto inside = [&](std::string_view range) { return meets(*parse_prefix(range)); };
  if (inside("127.0.0.0/8") || inside("::1") || inside("0.0.0.0") || inside("::"))
    return usage_error(fmt::format("'{}': inside the box this address is the box itself", entry),
                       "give the host's service a name, and open its address with --network-private");
  if (meets(kSyntheticRange4) || meets(kSyntheticRange6))
    return usage_error(fmt::format("'{}': the sandbox gives addresses of this range to names", entry),
                       "name the host instead of its address");
  if (prefix.length < (prefix.address.v6 ? 16u : 8u))
    return usage_error(fmt::format("'{}' is too wide a range", entry), "write * for the public internet");
  return prefix;
}

}  // namespace

Result<NetRule> parse_net_rule(std::string_view entry) {
  PCTX_TRY(check_shape(entry));
  const Split split = PCTX_TRY(split_port(entry));
  NetRule rule;
  if (split.has_port) rule.ports = {PCTX_TRY(parse_port(entry, split.port))};
  const bool literal = entry.starts_with('[') || parse_ip(split.host.substr(0, split.host.find('/')));
  if (literal) {
    rule.kind = NetRule::Kind::address;
    rule.address = PCTX_TRY(parse_literal(entry, split.host));
    return rule;
  }
  if (split.host.find('/') != std::string_view::npos)
    return usage_error(fmt::format("'{}' holds a path", entry), std::string{kHowTo});
  std::string_view host = split.host;
  if (host == "*") {
    rule.kind = NetRule::Kind::any;
    return rule;
  }
  if (host.starts_with("*.")) {
    rule.kind = NetRule::Kind::wildcard;
    host.remove_prefix(2);
  }
  if (host.find('*') != std::string_view::npos)
    return usage_error(fmt::format("'{}' has a '*' that is not the whole first part", entry),
                       "write *.example.org for every name below example.org");
  rule.name = PCTX_TRY(parse_host_name(host));
  return rule;
}

Result<std::vector<NetRule>> parse_net_rules(std::string_view entries) {
  std::vector<NetRule> rules;
  for (;;) {
    const std::size_t comma = entries.find(',');
    rules.push_back(PCTX_TRY(parse_net_rule(entries.substr(0, comma))));
    if (rules.size() > kMaxNetRules)
      return usage_error(fmt::format("the network list has more than {} entries", kMaxNetRules), kFewer);
    if (comma == std::string_view::npos) return rules;
    entries.remove_prefix(comma + 1);
  }
}

Result<IpPrefix> parse_private_range(std::string_view text) {
  const IpPrefix prefix = PCTX_TRY(parse_prefix(text));
  if (prefix.length < 8)
    return usage_error(fmt::format("'{}' is too wide a range", text), "name the ranges that are needed one by one");
  return prefix;
}

std::string to_string(const NetRule& rule) {
  const auto host = [&]() -> std::string {
    switch (rule.kind) {
      case NetRule::Kind::name:
        return rule.name;
      case NetRule::Kind::wildcard:
        return fmt::format("*.{}", rule.name);
      case NetRule::Kind::any:
        return "*";
      case NetRule::Kind::address:
        return rule.address.address.v6 ? fmt::format("[{}]", rule.address.text()) : rule.address.text();
    }
    return {};
  };
  if (rule.ports == std::vector<std::uint16_t>{80, 443} || rule.ports.empty()) return host();
  return fmt::format("{}:{}", host(), rule.ports.front());
}

Result<void> validate(const NetworkPolicy& policy, const Names& names) {
  if (policy.rules.empty())
    return usage_error(fmt::format("{}: the network list is empty", names.of("network")),
                       "leave the network out, or name a host");
  if (policy.rules.size() > kMaxNetRules)
    return usage_error(fmt::format("{}: more than {} entries", names.of("network.allow"), kMaxNetRules), kFewer);
  if (policy.open_private.size() > kMaxNetRules)
    return usage_error(fmt::format("{}: more than {} ranges", names.of("network.private"), kMaxNetRules),
                       "name wider ranges");
  if (listening_ports(policy).size() > kMaxNetPorts)
    return usage_error(fmt::format("{}: more than {} different ports", names.of("network.allow"), kMaxNetPorts),
                       "use fewer: each port is a listener in the box");
  for (const NetRule& rule : policy.rules)
    if (std::find(rule.ports.begin(), rule.ports.end(), 53) != rule.ports.end())
      return usage_error(
          fmt::format("{}: '{}': port 53 is the sandbox's own name server", names.of("network.allow"), to_string(rule)),
          "leave the entry out: names that are allowed are resolved anyway");
  if (policy.rate && *policy.rate < 1024)
    return usage_error(fmt::format("{}: the rate is below 1024 bytes per second", names.of("network.rate")),
                       "leave it out for no limit");
  if (policy.connections && (*policy.connections == 0 || *policy.connections > kMaxNetConnections))
    return usage_error(fmt::format("{}: {} is not between 1 and {}", names.of("network.connections"),
                                   *policy.connections, kMaxNetConnections),
                       fmt::format("leave it out for {}", kMaxNetConnections));
  return {};
}

std::vector<std::uint16_t> listening_ports(const NetworkPolicy& policy) {
  std::set<std::uint16_t> ports;
  for (const NetRule& rule : policy.rules) ports.insert(rule.ports.begin(), rule.ports.end());
  return {ports.begin(), ports.end()};
}

namespace {

bool names(const NetRule& rule, std::string_view name) {
  switch (rule.kind) {
    case NetRule::Kind::name:
      return rule.name == name;
    case NetRule::Kind::wildcard:
      return name.size() > rule.name.size() + 1 && name.ends_with(rule.name) &&
             name[name.size() - rule.name.size() - 1] == '.';
    case NetRule::Kind::any:
      // What has no dot is a name of this network, not of the internet; and no resolver is asked about these two.
      return name.find('.') != std::string_view::npos && !name.ends_with(".localhost") && !name.ends_with(".local");
    case NetRule::Kind::address:
      return false;
  }
  return false;
}

bool has_port(const NetRule& rule, std::uint16_t port) {
  return std::find(rule.ports.begin(), rule.ports.end(), port) != rule.ports.end();
}

}  // namespace

bool may_resolve(const NetworkPolicy& policy, std::string_view name) {
  return !name.empty() &&
         std::any_of(policy.rules.begin(), policy.rules.end(), [&](const NetRule& rule) { return names(rule, name); });
}

const NetRule* find_rule(const NetworkPolicy& policy, std::string_view name, std::uint16_t port) {
  const NetRule* best = nullptr;
  for (const NetRule& rule : policy.rules)
    if (has_port(rule, port) && names(rule, name) && (best == nullptr || rule.kind < best->kind)) best = &rule;
  return best;
}

const NetRule* find_rule(const NetworkPolicy& policy, const IpAddress& address, std::uint16_t port) {
  const NetRule* any = nullptr;
  for (const NetRule& rule : policy.rules) {
    if (!has_port(rule, port)) continue;
    if (rule.kind == NetRule::Kind::address && rule.address.contains(address)) return &rule;
    if (rule.kind == NetRule::Kind::any) any = &rule;
  }
  return any;
}

bool is_opened(const NetworkPolicy& policy, const IpAddress& address) {
  const auto holds = [&](const IpPrefix& prefix) { return prefix.contains(address); };
  return std::any_of(policy.open_private.begin(), policy.open_private.end(), holds);
}

}  // namespace pctx
