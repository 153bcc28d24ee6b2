#include <fmt/format.h>

#include "policy/policy.h"

namespace pctx {

namespace {

// Docker's way to say how a folder is lent: here the option does.
Error colon_in_place(const Bind& bind) {
  const std::size_t colon = bind.target.find(':');
  const std::string_view mode = std::string_view{bind.target}.substr(colon + 1);
  const bool read = mode == "ro" || mode.starts_with("ro,"), write = mode == "rw" || mode.starts_with("rw,");
  const std::string rest = fmt::format("{}:{}", bind.source, bind.target.substr(0, colon));
  std::string hint = "name a place without one, for example /data";
  if (read && !bind.writable) hint = fmt::format("write {}: --ro is read-only already", rest);
  if (write && bind.writable) hint = fmt::format("write {}: --rw may be written to already", rest);
  if (write && !bind.writable) hint = fmt::format("what may be written to is lent with --rw {}", rest);
  if (read && bind.writable) hint = fmt::format("what is only read is lent with --ro {}", rest);
  return usage_error(fmt::format("'{}' is no place in the box: it has a colon", bind.target), hint);
}

}  // namespace

Result<Bind> parse_bind(std::string_view text, bool writable) {
  const std::size_t colon = text.find(':');
  if (writable && colon == std::string_view::npos)
    return usage_error(fmt::format("'{}' names no place in the box", text),
                       "write HOST:GUEST, for example ./data:/data");
  Bind bind{std::string{text.substr(0, colon)}, "", writable};
  bind.target = colon == std::string_view::npos ? bind.source : std::string{text.substr(colon + 1)};
  if (bind.source.empty() || bind.target.empty())
    return usage_error(fmt::format("'{}' lacks a path", text), "write HOST or HOST:GUEST");
  if (bind.target.find(':') != std::string::npos) return colon_in_place(bind);
  // Where this folder is says nothing about a place in the box.
  if (colon == std::string_view::npos && bind.source.front() != '/')
    return usage_error(fmt::format("'{}' is a relative path and names no place in the box", text),
                       fmt::format("name one: {}:/data", text));
  return bind;
}

Result<Tmpfs> parse_tmpfs(std::string_view text) {
  const std::size_t colon = text.find(':');
  Tmpfs tmpfs{std::string{text.substr(0, colon)}};
  if (colon != std::string_view::npos) tmpfs.size = PCTX_TRY(parse_size(text.substr(colon + 1)));
  return tmpfs;
}

Result<std::pair<std::string, std::string>> parse_env(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0)
    return usage_error(fmt::format("'{}' is not NAME=VALUE", text),
                       "nothing is inherited from your environment: write the value, for example --env LANG=C.UTF-8");
  return std::pair{std::string{text.substr(0, equals)}, std::string{text.substr(equals + 1)}};
}

Result<LayerSet> parse_layers(std::string_view text) {
  LayerSet set;
  // --require "$UNSET" must not mean: require nothing.
  if (text.empty()) return usage_error("no layer is named", "name one, or leave the option out");
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const auto layer = layer_named(name);
    if (!layer) {
      std::string known;
      for (const LayerInfo& entry : kLayers) known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
      return usage_error(fmt::format("'{}' is not a layer", name), "the layers are " + known);
    }
    set.set(index(*layer));
  }
  return set;
}

Result<void> parse_network(std::string_view text, Policy& policy) {
  constexpr std::string_view kAllowPrefix = "allow:";
  if (text.starts_with(kAllowPrefix)) {
    policy.allowed.rules = PCTX_TRY(parse_net_rules(text.substr(kAllowPrefix.size())));
    policy.network = Network::allow;
    return {};
  }
  if (text != "none" && text != "host")
    return usage_error(fmt::format("'{}' is not a network mode", text), "write none, host or allow:HOST[:PORT],...");
  policy.network = text == "none" ? Network::none : Network::host;
  policy.allowed = {};
  return {};
}

Result<std::vector<IpPrefix>> parse_private_ranges(std::string_view text) {
  std::vector<IpPrefix> ranges;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    ranges.push_back(PCTX_TRY(parse_private_range(text.substr(0, comma))));
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
  }
  return ranges;
}

}  // namespace pctx
