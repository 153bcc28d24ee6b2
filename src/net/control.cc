#include "net/control.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/units.h"
#include "wire/packet.h"

namespace pctx::net {
namespace {

Json rule_json(const NetRule& rule) {
  return {{"kind", static_cast<int>(rule.kind)},
          {"name", rule.name},
          {"address", rule.kind == NetRule::Kind::address ? rule.address.text() : ""},
          {"ports", rule.ports}};
}

Result<NetRule> rule_from(const Json& json) {
  NetRule rule;
  rule.kind = static_cast<NetRule::Kind>(json.value("kind", 0));
  rule.name = json.value("name", "");
  rule.ports = json.value("ports", std::vector<std::uint16_t>{});
  if (rule.kind == NetRule::Kind::address) rule.address = PCTX_TRY(parse_prefix(json.value("address", "")));
  return rule;
}

std::optional<std::uint64_t> figure(const Json& json, const char* key) {
  return json.contains(key) ? std::optional{json[key].get<std::uint64_t>()} : std::nullopt;
}

std::string text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>().substr(0, 1024) : std::string{};
}

}  // namespace

std::vector<AddPacket> write_add(std::uint32_t id, const NetworkPolicy& policy, const NetworkEnds& ends) {
  Json json{{"add", id}, {"rules", Json::array()}, {"private", Json::array()}};
  for (const NetRule& rule : policy.rules) json["rules"].push_back(rule_json(rule));
  for (const IpPrefix& prefix : policy.open_private) json["private"].push_back(prefix.text());
  if (policy.rate) json["rate"] = *policy.rate;
  if (policy.bytes) json["bytes"] = *policy.bytes;
  if (policy.connections) json["connections"] = *policy.connections;
  std::vector<std::pair<std::string, int>> all;
  const auto offer = [&](std::string place, const Fd& fd) {
    if (fd) all.emplace_back(std::move(place), fd.get());
  };
  offer("dns_udp", ends.dns_udp);
  offer("dns_tcp", ends.dns_tcp);
  offer("packet", ends.packet);
  offer("raw4", ends.raw4);
  offer("raw6", ends.raw6);
  for (const auto& [port, listener] : ends.listeners) offer(fmt::format("{}", port), listener);
  std::vector<AddPacket> packets;
  for (std::size_t at = 0; at == 0 || at < all.size(); at += wire::kMaxFds) {
    AddPacket packet;
    Json places = Json::array();
    for (std::size_t i = at; i < std::min(all.size(), at + wire::kMaxFds); ++i) {
      places.push_back(all[i].first);
      packet.fds.push_back(all[i].second);
    }
    json["places"] = std::move(places);
    json["complete"] = at + wire::kMaxFds >= all.size();
    packet.text = json.dump();
    packets.push_back(std::move(packet));
    json = Json{{"more", id}};
  }
  return packets;
}

std::vector<std::string> write_known(std::uint32_t id, const std::vector<std::string>& names) {
  constexpr std::size_t kAtOnce = 64;  // of at most 253 bytes
  std::vector<std::string> packets;
  for (std::size_t at = 0; at < names.size(); at += kAtOnce) {
    Json some = Json::array();
    for (std::size_t i = at; i < std::min(names.size(), at + kAtOnce); ++i) some.push_back(names[i]);
    packets.push_back(Json{{"known", id}, {"some", std::move(some)}}.dump());
  }
  return packets;
}

std::string write_remove(std::uint32_t id) { return Json{{"remove", id}}.dump(); }
std::string write_names() { return R"({"names": true})"; }

// The owner is trusted; a message that is not as it should be is a fault of ours.
Result<Command> read_command(std::string_view message) try {
  const Json json = Json::parse(message);
  Command command;
  if (json.contains("names")) {
    command.kind = Command::Kind::names;
    return command;
  }
  if (json.contains("remove")) {
    command.kind = Command::Kind::remove;
    command.id = json["remove"].get<std::uint32_t>();
    return command;
  }
  if (json.contains("known")) {
    command.kind = Command::Kind::known;
    command.id = json["known"].get<std::uint32_t>();
    command.known = json.at("some").get<std::vector<std::string>>();
    return command;
  }
  command.kind = json.contains("add") ? Command::Kind::add : Command::Kind::more;
  command.id = json.at(command.kind == Command::Kind::add ? "add" : "more").get<std::uint32_t>();
  command.complete = json.at("complete").get<bool>();
  command.places = json.at("places").get<std::vector<std::string>>();
  if (command.kind == Command::Kind::more) return command;
  for (const Json& rule : json.at("rules")) command.policy.rules.push_back(PCTX_TRY(rule_from(rule)));
  for (const Json& range : json.at("private"))
    command.policy.open_private.push_back(PCTX_TRY(parse_prefix(range.get<std::string>())));
  command.policy.rate = figure(json, "rate");
  command.policy.bytes = figure(json, "bytes");
  command.policy.connections = figure(json, "connections");
  return command;
} catch (const Json::exception& error) {
  return os_error(fmt::format("a message to the relay is broken ({})", error.what()), EPROTO);
}

bool put_end(NetworkEnds& ends, std::string_view place, Fd fd) {
  for (const auto& [name, end] : std::initializer_list<std::pair<std::string_view, Fd*>>{{"dns_udp", &ends.dns_udp},
                                                                                         {"dns_tcp", &ends.dns_tcp},
                                                                                         {"packet", &ends.packet},
                                                                                         {"raw4", &ends.raw4},
                                                                                         {"raw6", &ends.raw6}})
    if (name == place) {
      *end = std::move(fd);
      return true;
    }
  const auto port = parse_count(place);
  if (!port || *port > 65535) return false;
  ends.listeners.emplace_back(static_cast<std::uint16_t>(*port), std::move(fd));
  return true;
}

std::string write_ready() { return R"({"ready": true})"; }
std::string write_failed(const Error& error) {
  return Json{{"failed", error.what}, {"hint", error.hint}, {"code", error.code}}.dump(-1, ' ', false,
                                                                                       Json::error_handler_t::replace);
}
std::string write_used(std::uint32_t id, std::uint64_t sent, std::uint64_t received) {
  return Json{{"used", id}, {"sent", sent}, {"received", received}}.dump();
}

std::string write_named(std::uint32_t id, std::size_t number, std::string_view name) {
  return Json{{"named", id}, {"number", number}, {"name", name}}.dump();
}
std::string write_refused(std::uint32_t id) { return Json{{"refused", id}}.dump(); }

Notice read_notice(std::string_view message) {
  const Json json = Json::parse(message, nullptr, false);
  Notice notice;
  if (!json.is_object()) return notice;
  if (json.contains("ready")) {
    notice.kind = Notice::Kind::ready;
  } else if (json.contains("failed")) {
    notice.kind = Notice::Kind::failed;
    notice.error = unavailable(text_in(json, "failed"), text_in(json, "hint"));
  } else if (json.contains("used")) {
    notice.kind = Notice::Kind::used;
    notice.id = static_cast<std::uint32_t>(json_number(json, "used"));
    notice.sent = json_number(json, "sent");
    notice.received = json_number(json, "received");
  } else if (json.contains("named")) {
    notice.kind = Notice::Kind::named;
    notice.id = static_cast<std::uint32_t>(json_number(json, "named"));
    notice.number = json_number(json, "number");
    notice.name = text_in(json, "name");
  } else if (json.contains("refused")) {
    notice.kind = Notice::Kind::refused;
    notice.id = static_cast<std::uint32_t>(json_number(json, "refused"));
  } else if (json.contains("record")) {
    notice.kind = Notice::Kind::record;
    notice.id = static_cast<std::uint32_t>(json_number(json, "record"));
  }
  return notice;
}

}  // namespace pctx::net
