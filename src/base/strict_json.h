// JSON that people write: its mistakes have a place. No key stands twice, nothing is nested deeply.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/json.h"
#include "base/result.h"

namespace pctx {

inline constexpr int kMaxJsonDepth = 8;

// "limits.memory", "syscalls[1].action": where the reader is.
class JsonPlace {
 public:
  void open(bool list) { open_.push_back({list, 0, "", {}}); }
  void close();
  void pass();                         // a value is over; in a list the next one follows
  bool enter(const std::string& key);  // whether this object has the key for the first time
  std::string text() const;            // of one line, and not endless

 private:
  struct Open {
    bool list;
    std::size_t index;
    std::string key;
    std::set<std::string> keys;
  };
  std::vector<Open> open_;
};

bool is_utf8(std::string_view bytes);

// "line 1, column 26" of the byte that a parser stopped at, which counts from 1.
std::string text_position(std::string_view text, std::size_t byte);

// What the parser says of the byte that it stopped at, in words for people.
Error not_json(std::string_view text, std::size_t byte, std::string_view said);

template <class Json>
Result<Json> parse_strict_json(std::string_view text, std::size_t most_bytes) {
  if (text.size() > most_bytes)
    return usage_error(fmt::format("larger than {} bytes", most_bytes), "leave out what is not needed");
  bool too_deep = false;
  std::string twice;
  JsonPlace place;
  const auto watch = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
    using Event = typename Json::parse_event_t;
    if (depth > kMaxJsonDepth) too_deep = true;
    if (too_deep) return false;
    if (event == Event::object_start || event == Event::array_start) place.open(event == Event::array_start);
    if (event == Event::object_end || event == Event::array_end) place.close();
    if (event == Event::value) place.pass();
    // The library would keep the last one silently.
    if (event == Event::key && !place.enter(parsed.template get_ref<const std::string&>()) && twice.empty())
      twice = place.text();
    return true;
  };
  if (text.find_first_not_of(" \t\r\n") == text.npos)
    return usage_error("nothing is in it", "name another file, or write a JSON object to it");
  const Error deep = usage_error(fmt::format("nested deeper than {} levels", kMaxJsonDepth), "write it flatter");
  try {
    Json json = Json::parse(text.begin(), text.end(), watch);
    if (too_deep) return deep;
    if (!twice.empty()) return usage_error(fmt::format("the key '{}' stands twice", twice), "leave one of them out");
    return json;
  } catch (const typename Json::parse_error& error) {
    if (too_deep) return deep;
    return not_json(text, error.byte, error.what());
  } catch (const typename Json::exception&) {
    if (too_deep) return deep;
    return usage_error("a number is too large to be read", "write a smaller one");
  }
}

}  // namespace pctx
