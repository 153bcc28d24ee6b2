#include "base/printable.h"

#include <algorithm>
#include <array>

namespace pctx {
namespace {

// The lengths a lead byte announces, and the range of the byte after it: the range is what rules out overlong forms
// (E0, F0), surrogates (ED) and values past U+10FFFF (F4).
struct LeadRange {
  std::uint8_t first, last;
  std::size_t length;
  std::uint8_t second_min, second_max;
};
constexpr std::array<LeadRange, 8> kLeadRanges{{
    {0xc2, 0xdf, 2, 0x80, 0xbf},
    {0xe0, 0xe0, 3, 0xa0, 0xbf},
    {0xe1, 0xec, 3, 0x80, 0xbf},
    {0xed, 0xed, 3, 0x80, 0x9f},
    {0xee, 0xef, 3, 0x80, 0xbf},
    {0xf0, 0xf0, 4, 0x90, 0xbf},
    {0xf1, 0xf3, 4, 0x80, 0xbf},
    {0xf4, 0xf4, 4, 0x80, 0x8f},
}};

std::uint8_t byte_of(char c) { return static_cast<std::uint8_t>(c); }

std::string printable(std::string_view text, std::string_view backslash) {
  std::string out;
  while (!text.empty()) {
    const Utf8Front front = decode_utf8_front(text);
    const bool valid = front.status == Utf8Status::valid;
    const std::string_view bytes = text.substr(0, valid ? front.length : 1);
    if (bytes == "\\") {
      out += backslash;
    } else if (valid && is_displayable(front.value)) {
      out += bytes;
    } else {
      for (const char byte : bytes) show_byte(out, byte);
    }
    text.remove_prefix(bytes.size());
  }
  return out;
}

}  // namespace

Utf8Front decode_utf8_front(std::string_view text) {
  const std::uint8_t lead = byte_of(text[0]);
  if (lead < 0x80) return {Utf8Status::valid, 1, lead};
  const auto* range = std::find_if(kLeadRanges.begin(), kLeadRanges.end(),
                                   [lead](const LeadRange& r) { return lead >= r.first && lead <= r.last; });
  if (range == kLeadRanges.end()) return {Utf8Status::invalid};
  char32_t value = lead & (0x7fU >> range->length);
  const std::size_t present = std::min(range->length, text.size());
  for (std::size_t i = 1; i < present; ++i) {
    const std::uint8_t next = byte_of(text[i]);
    const bool fits = i == 1 ? next >= range->second_min && next <= range->second_max : (next & 0xc0) == 0x80;
    if (!fits) return {Utf8Status::invalid};
    value = (value << 6) | (next & 0x3fU);
  }
  if (present < range->length) return {Utf8Status::incomplete};
  return {Utf8Status::valid, range->length, value};
}

bool is_displayable(char32_t c) {
  if (c < 0x20 || (c >= 0x7f && c <= 0x9f)) return false;
  return !((c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || (c >= 0xe0000 && c <= 0xe007f));
}

void append_hex(std::string& out, std::uint32_t value, int digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out += kDigits[(value >> shift) & 0xf];
}

void show_byte(std::string& out, char byte) {
  out += "\\x";
  append_hex(out, byte_of(byte), 2);
}

std::string printable_path(std::string_view path) { return printable(path, "\\\\"); }

std::string printable_line(std::string_view line) { return printable(line, "\\"); }

std::string printable_json(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  while (!json.empty()) {
    const auto run = std::find_if_not(json.begin(), json.end(), is_plain_ascii);
    out.append(json.begin(), run);
    json.remove_prefix(static_cast<std::size_t>(run - json.begin()));
    if (json.empty()) break;
    const Utf8Front front = decode_utf8_front(json);
    const std::string_view bytes = json.substr(0, front.status == Utf8Status::valid ? front.length : 1);
    // Below a space only what stands between values: the library has escaped the rest.
    if (front.status != Utf8Status::valid || front.value < 0x20 || is_displayable(front.value)) {
      out += bytes;
    } else if (front.value > 0xffff) {
      out += "\\u";
      append_hex(out, 0xd800 + ((front.value - 0x10000) >> 10), 4);
      out += "\\u";
      append_hex(out, 0xdc00 + ((front.value - 0x10000) & 0x3ff), 4);
    } else {
      out += "\\u";
      append_hex(out, front.value, 4);
    }
    json.remove_prefix(bytes.size());
  }
  return out;
}

}  // namespace pctx
