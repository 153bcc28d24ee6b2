#include "box/terminal.h"

#include <algorithm>
#include <cstdint>

#include "base/printable.h"

namespace pctx {
namespace {

constexpr char kEscape = '\x1b';
constexpr std::string_view kResetColours = "\x1b[0m";

std::uint8_t to_byte(char c) { return static_cast<std::uint8_t>(c); }

bool is_line_motion(char c) { return c == '\n' || c == '\r' || c == '\t' || c == '\b'; }
bool is_parameter(char c) { return (c >= '0' && c <= '9') || c == ';' || c == ':'; }

void show_control(std::string& out, char control) {
  out += '^';
  out += static_cast<char>(control ^ 0x40);  // 0x1b becomes '[', DEL becomes '?'
}

}  // namespace

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
