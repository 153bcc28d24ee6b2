// Names and texts of a guest's making, made safe to show in one line. Pure: no descriptor, no locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pctx {

// A file name of the guest's making, for messages and JSON: valid UTF-8 without control or bidi characters. Reversible:
// a backslash becomes `\\`, each byte of what is invalid or not displayable becomes `\xNN`.
std::string printable_path(std::string_view path);

// One line of our own that may hold such names: as above, but backslashes stay, so that what was escaped stays so too.
std::string printable_line(std::string_view line);

// JSON with text of the guest's making, which is valid UTF-8 as our library writes it: what is not displayable becomes
// `\uNNNN`, two of them past U+FFFF. It reads as the same value.
std::string printable_json(std::string_view json);

enum class Utf8Status { valid, invalid, incomplete };

// The character at the front of a text; `length` counts its bytes.
struct Utf8Front {
  Utf8Status status = Utf8Status::invalid;
  std::size_t length = 0;
  char32_t value = 0;
};

// Invalid at the first byte that shows it, so that a filter holds back no more than it must. `text` is not empty.
Utf8Front decode_utf8_front(std::string_view text);

// Neither a control character (C0, DEL, C1) nor a bidirectional embedding, override or isolate (CVE-2021-42574), nor
// what ends a line for some readers, nor a tag, which nobody sees.
bool is_displayable(char32_t c);

constexpr bool is_plain_ascii(char c) { return c >= 0x20 && c < 0x7f; }

void append_hex(std::string& out, std::uint32_t value, int digits);
void show_byte(std::string& out, char byte);  // `\xNN`

}  // namespace pctx
