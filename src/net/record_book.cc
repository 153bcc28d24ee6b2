#include "net/record_book.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/json.h"

namespace pctx::net {
namespace {

constexpr std::size_t kMostText = 256;

std::string key_of(const ConnectionRecord& record) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", record.name, record.address, record.port, record.transport,
                     record.allowed, record.check, record.reason);
}

// Short, and nothing in it that a terminal or a log would take for its own.
std::string plain_text(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return {};
  std::string value = found->get<std::string>().substr(0, kMostText);
  std::replace_if(
      value.begin(), value.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return value;
}

bool flag(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

Json line_of(const ConnectionRecord& record) {
  return {{"name", record.name},       {"address", record.address}, {"port", record.port},
          {"via", record.transport},   {"sent", record.sent},       {"received", record.received},
          {"allowed", record.allowed}, {"reason", record.reason},   {"check", record.check},
          {"count", record.count}};
}

}  // namespace

void RecordBook::write(ConnectionRecord record) {
  auto& lines = record_.connections;
  const std::string key = key_of(record);
  const auto found = known_.find(key);
  // Connections that went through are told one by one while there is room, refusals never twice.
  if (found != known_.end() && (!record.allowed || lines.size() >= kMost)) {
    ConnectionRecord& line = lines[found->second];
    line.count += record.count;
    line.sent += record.sent;
    line.received += record.received;
    return;
  }
  if (lines.size() >= kMost) {
    record_.left_out += record.count;
    return;
  }
  known_.insert_or_assign(key, lines.size());
  lines.push_back(std::move(record));
}

std::vector<std::string> RecordBook::packets(std::uint32_t id, std::uint64_t sent, std::uint64_t received,
                                             std::size_t most) const {
  constexpr auto kReplace = Json::error_handler_t::replace;
  std::vector<std::string> packets;
  Json lines = Json::array();
  std::size_t size = 0;
  const auto flush = [&](bool last) {
    Json packet{{"record", id}, {"lines", std::move(lines)}};
    if (last) packet.update({{"last", true}, {"left_out", record_.left_out}, {"sent", sent}, {"received", received}});
    packets.push_back(packet.dump(-1, ' ', false, kReplace));
    lines = Json::array();
    size = 0;
  };
  for (const ConnectionRecord& record : record_.connections) {
    Json line = line_of(record);
    const std::size_t more = line.dump(-1, ' ', false, kReplace).size() + 1;
    if (size + more > most - 256) flush(false);
    size += more;
    lines.push_back(std::move(line));
  }
  flush(true);
  return packets;
}

Result<bool> RecordReader::read(std::string_view packet, std::uint32_t& id) {
  const Json json = Json::parse(packet, nullptr, false);
  if (!json.is_object()) return os_error("the relay sent what is no message", EPROTO);
  id = static_cast<std::uint32_t>(json_number(json, "record"));
  NetworkRecord& record = open_[id];
  if (const auto lines = json.find("lines"); lines != json.end() && lines->is_array())
    for (const Json& line : *lines) {
      if (!line.is_object() || record.connections.size() >= RecordBook::kMost) continue;
      record.connections.push_back({.name = plain_text(line, "name"),
                                    .address = plain_text(line, "address"),
                                    .port = static_cast<std::uint16_t>(json_number(line, "port")),
                                    .transport = plain_text(line, "via"),
                                    .sent = json_number(line, "sent"),
                                    .received = json_number(line, "received"),
                                    .allowed = flag(line, "allowed"),
                                    .reason = plain_text(line, "reason"),
                                    .check = plain_text(line, "check"),
                                    .count = json_number(line, "count")});
    }
  if (!flag(json, "last")) return false;
  record.left_out = json_number(json, "left_out");
  record.sent = json_number(json, "sent");
  record.received = json_number(json, "received");
  return true;
}

NetworkRecord RecordReader::take(std::uint32_t id) {
  NetworkRecord record = std::move(open_[id]);
  open_.erase(id);
  return record;
}

}  // namespace pctx::net
