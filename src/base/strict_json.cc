#include "base/strict_json.h"

#include <algorithm>

namespace pctx {
namespace {

constexpr std::size_t kLongestKey = 40, kLongestPlace = 300;

std::string shown_key(const std::string& key) {
  const std::string quoted = Json(key.substr(0, kLongestKey)).dump(-1, ' ', true, Json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

void JsonPlace::close() {
  if (!open_.empty()) open_.pop_back();
  pass();
}

void JsonPlace::pass() {
  if (!open_.empty()) ++open_.back().index;
}

bool JsonPlace::enter(const std::string& key) {
  if (open_.empty()) return true;
  open_.back().key = key;
  return open_.back().keys.insert(key).second;
}

std::string JsonPlace::text() const {
  std::string text;
  for (const Open& each : open_)
    text += each.list ? fmt::format("[{}]", each.index) : (text.empty() ? "" : ".") + shown_key(each.key);
  return text.substr(0, kLongestPlace);
}

bool is_utf8(std::string_view bytes) {
  try {
    (void)Json(bytes).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

std::string text_position(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte == 0 ? 0 : byte - 1);
  const std::size_t newline = before.rfind('\n');
  const std::string_view line = newline == before.npos ? before : before.substr(newline + 1);
  const auto starts = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };  // a character of UTF-8
  return fmt::format("line {}, column {}", std::count(before.begin(), before.end(), '\n') + 1,
                     std::count_if(line.begin(), line.end(), starts) + 1);
}

Error not_json(std::string_view text, std::size_t byte, std::string_view said) {
  const std::string at = text_position(text, byte);
  const bool ascii = byte == 0 || byte > text.size() || static_cast<unsigned char>(text[byte - 1]) < 0x80;
  if (said.find("ill-formed UTF-8") != said.npos || (!ascii && !is_utf8(text)))
    return usage_error(fmt::format("not UTF-8 at {}", at), "save it in that encoding, which JSON is in");
  if (said.find("; expected end of input") != said.npos)
    return usage_error(fmt::format("something stands behind the JSON, at {}", at), "leave it out: there is one value");
  return usage_error(fmt::format("not valid JSON at {}", at),
                     "JSON has no comma before } or ], no comments, and double quotes only");
}

}  // namespace pctx
