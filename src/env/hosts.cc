#include "env/hosts.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/units.h"

namespace pctx::env {
namespace {

constexpr const char* kDefaultIndex = "https://pypi.org/simple";
constexpr std::size_t kMostLearned = 32;

// Index pages that are known to link elsewhere. Others are learned.
struct FileHost {
  const char* index;
  const char* files;
};
constexpr FileHost kFileHosts[] = {{"pypi.org", "files.pythonhosted.org"},
                                   {"pypi.python.org", "files.pythonhosted.org"},
                                   {"test.pypi.org", "test-files.pythonhosted.org"},
                                   {"download.pytorch.org", "download-r2.pytorch.org"}};

// An index is configured by whoever owns this host, and may well be a private one; gateways of closed networks also use
// the ranges for documentation.
constexpr const char* kPrivate[] = {"10.0.0.0/8",   "172.16.0.0/12",   "192.168.0.0/16", "100.64.0.0/10", "fd00::/8",
                                    "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"};

void add(std::vector<NetRule>& rules, NetRule rule) {
  if (std::find(rules.begin(), rules.end(), rule) == rules.end()) rules.push_back(std::move(rule));
}

void add_address(std::vector<NetRule>& rules, const IpAddress& address, std::uint16_t port) {
  add(rules, {.kind = NetRule::Kind::address, .address = {address, address.bits()}, .ports = {port}});
}

bool is_loopback(const IpAddress& address) { return address.v6 ? address.text() == "::1" : address.bytes[0] == 127; }

}  // namespace

std::vector<NetRule> rules_of(const std::vector<std::string>& addresses) {
  std::vector<NetRule> rules;
  for (std::string_view address : addresses) {
    const std::size_t scheme = address.find("://");
    if (scheme == std::string_view::npos) continue;
    const std::string_view kind = address.substr(0, scheme);
    const bool plain = kind.ends_with("http");  // "name=http" of UV_INDEX too
    if (!plain && !kind.ends_with("https") && !kind.starts_with("socks")) continue;
    address.remove_prefix(scheme + 3);
    address = address.substr(0, address.find_first_of("/?#"));
    if (const std::size_t sign = address.rfind('@'); sign != std::string_view::npos) address.remove_prefix(sign + 1);
    std::uint16_t port = plain ? 80 : kind.starts_with("socks") ? 1080 : 443;
    std::string_view host = address;
    if (const std::size_t colon = address.rfind(':');
        colon != std::string_view::npos && address.find(']', colon) == std::string_view::npos) {
      const auto number = parse_count(address.substr(colon + 1));
      if (!number || *number == 0 || *number > 65535) continue;
      port = static_cast<std::uint16_t>(*number);
      host = address.substr(0, colon);
    }
    if (host == "localhost") {
      for (const char* own : {"127.0.0.1", "::1"}) add_address(rules, *parse_ip(own), port);
      continue;
    }
    const bool brackets = host.starts_with('[') && host.ends_with(']');
    if (const auto ip = parse_ip(brackets ? host.substr(1, host.size() - 2) : host)) {
      add_address(rules, *ip, port);
      continue;
    }
    if (auto rule = parse_net_rule(fmt::format("{}:{}", host, port))) add(rules, *std::move(rule));
  }
  return rules;
}

NetworkPolicy build_network(const IndexSettings& index) {
  std::vector<std::string> addresses = index.addresses;
  if (!index.names_index && !index.no_index) addresses.emplace_back(kDefaultIndex);
  NetworkPolicy network;
  network.rules = rules_of(addresses);
  for (const FileHost& known : kFileHosts)
    for (std::size_t i = 0, count = network.rules.size(); i < count; ++i)
      if (network.rules[i].name == known.index)
        add(network.rules, {.kind = NetRule::Kind::name, .name = known.files, .ports = {443}});
  for (const char* range : kPrivate)
    if (auto prefix = parse_prefix(range)) network.open_private.push_back(*prefix);
  for (const NetRule& rule : network.rules)
    if (rule.kind == NetRule::Kind::address && is_loopback(rule.address.address))
      network.open_private.push_back(rule.address);
  return network;
}

bool learn_hosts(NetworkPolicy& network, const NetworkRecord& record) {
  const std::size_t before = network.rules.size();
  for (const ConnectionRecord& each : record.connections) {
    if (each.allowed || network.rules.size() >= before + kMostLearned) continue;
    if (each.transport == "dns") {
      if (auto rule = parse_net_rule(each.name)) add(network.rules, *std::move(rule));
    } else if (const auto address = parse_ip(each.address);
               each.transport == "tcp" && each.name.empty() && address && !is_loopback(*address)) {
      add_address(network.rules, *address, each.port);
    }
  }
  return network.rules.size() > before;
}

}  // namespace pctx::env
