#include "box/terminal.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace pctx {
namespace {

constexpr char kEscape = '\x1b';
constexpr std::string_view kResetColours = "\x1b[0m";

enum class Utf8Status { valid, invalid, incomplete };

// The character at the front of a text; `length` counts its bytes.
struct Utf8Front {
  Utf8Status status = Utf8Status::invalid;
  std::size_t length = 0;
  char32_t value = 0;
};

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

std::uint8_t to_byte(char c) { return static_cast<std::uint8_t>(c); }

bool is_plain_ascii(char c) { return c >= 0x20 && c < 0x7f; }
bool is_line_motion(char c) { return c == '\n' || c == '\r' || c == '\t' || c == '\b'; }
bool is_parameter(char c) { return (c >= '0' && c <= '9') || c == ';' || c == ':'; }

void append_hex(std::string& out, std::uint32_t value, int digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out += kDigits[(value >> shift) & 0xf];
}

void show_byte(std::string& out, char byte) {
  out += "\\x";
  append_hex(out, to_byte(byte), 2);
}

void show_control(std::string& out, char control) {
  out += '^';
  out += static_cast<char>(control ^ 0x40);  // 0x1b becomes '[', DEL becomes '?'
}

// Invalid at the first byte that shows it, so that a filter holds back no more than it must. `text` is not empty.
Utf8Front decode_utf8_front(std::string_view text) {
  const std::uint8_t lead = to_byte(text[0]);
  if (lead < 0x80) return {Utf8Status::valid, 1, lead};
  const auto* range = std::find_if(kLeadRanges.begin(), kLeadRanges.end(),
                                   [lead](const LeadRange& r) { return lead >= r.first && lead <= r.last; });
  if (range == kLeadRanges.end()) return {Utf8Status::invalid};
  char32_t value = lead & (0x7fU >> range->length);
  const std::size_t present = std::min(range->length, text.size());
  for (std::size_t i = 1; i < present; ++i) {
    const std::uint8_t next = to_byte(text[i]);
    const bool fits = i == 1 ? next >= range->second_min && next <= range->second_max : (next & 0xc0) == 0x80;
    if (!fits) return {Utf8Status::invalid};
    value = (value << 6) | (next & 0x3fU);
  }
  if (present < range->length) return {Utf8Status::incomplete};
  return {Utf8Status::valid, range->length, value};
}

// Neither a control character (C0, DEL, C1) nor a bidirectional embedding, override or isolate (CVE-2021-42574), nor
// what ends a line for some readers, nor a tag, which nobody sees.
bool is_displayable(char32_t c) {
  if (c < 0x20 || (c >= 0x7f && c <= 0x9f)) return false;
  return !((c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || (c >= 0xe0000 && c <= 0xe007f));
}

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

std::string TerminalFilter::feed(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    if (pending_.empty()) {
      // Nearly all output is runs of plain text; they are copied whole.
      const auto run = std::find_if_not(bytes.begin(), bytes.end(), is_plain_ascii);
      out.append(bytes.begin(), run);
      bytes.remove_prefix(static_cast<std::size_t>(run - bytes.begin()));
      if (bytes.empty()) break;
    }
    accept(bytes.front(), out);
    bytes.remove_prefix(1);
  }
  return out;
}

std::string TerminalFilter::finish() {
  std::string out;
  show_pending(out);
  if (styled_) out += kResetColours;
  styled_ = false;
  return out;
}

void TerminalFilter::accept(char byte, std::string& out) {
  if (pending_.empty()) return accept_fresh(byte, out);
  if (pending_[0] == kEscape) return accept_in_sequence(byte, out);
  accept_in_character(byte, out);
}

void TerminalFilter::accept_fresh(char byte, std::string& out) {
  if (is_plain_ascii(byte) || is_line_motion(byte)) {
    out += byte;
  } else if (byte == kEscape) {
    pending_ = byte;
  } else if (to_byte(byte) < 0x80) {
    show_control(out, byte);
  } else {
    accept_in_character(byte, out);
  }
}

// Private markers (`<=>?`) and intermediate bytes are not parameters here: `ESC [ > 4 ; 1 m` also ends in m, but sets
// how xterm reports keys.
void TerminalFilter::accept_in_sequence(char byte, std::string& out) {
  const bool starts = pending_.size() == 1;
  const bool continues = starts ? byte == '[' : is_parameter(byte);
  if (pending_.size() < kMaxSequence) {
    if (continues) {
      pending_ += byte;
      return;
    }
    if (!starts && (byte == 'm' || byte == 'K')) {
      const std::string_view parameters = std::string_view(pending_).substr(2);
      const bool erase = parameters.empty() || parameters == "0" || parameters == "1" || parameters == "2";
      if (byte == 'm' || erase) {
        pending_ += byte;
        return pass_sequence(out);
      }
    }
  }
  show_pending(out);
  accept_fresh(byte, out);
}

void TerminalFilter::pass_sequence(std::string& out) {
  if (pending_.back() == 'm') styled_ = pending_.find_first_not_of('0', 2) != pending_.size() - 1;
  out += pending_;
  pending_.clear();
}

void TerminalFilter::accept_in_character(char byte, std::string& out) {
  pending_ += byte;
  const Utf8Front front = decode_utf8_front(pending_);
  if (front.status == Utf8Status::incomplete) return;
  if (front.status == Utf8Status::valid) {
    if (is_displayable(front.value)) {
      out += pending_;
    } else {
      const bool wide = front.value > 0xffff;
      out += wide ? "\\U" : "\\u";
      append_hex(out, front.value, wide ? 8 : 4);
    }
    pending_.clear();
    return;
  }
  // Only the last byte can be the one that does not fit, and it may begin something of its own.
  if (pending_.size() == 1) return show_pending(out);
  pending_.pop_back();
  show_pending(out);
  accept_fresh(byte, out);
}

void TerminalFilter::show_pending(std::string& out) {
  for (const char c : pending_) {
    if (c == kEscape) {
      show_control(out, c);
    } else if (to_byte(c) < 0x80) {
      out += c;
    } else {
      show_byte(out, c);
    }
  }
  pending_.clear();
}

}  // namespace pctx
