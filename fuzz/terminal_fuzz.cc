// Whatever a guest writes, only text, line motion, colours and erase-in-line reach the terminal, however the stream is
// cut; and a printable path is displayable and can be turned back. The C library's decoder is the oracle for UTF-8.
#include <clocale>
#include <cstdint>
#include <cstdlib>
#include <cuchar>
#include <string>
#include <string_view>

#include "base/printable.h"
#include "box/terminal.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

std::string filter_in_chunks(std::string_view input, std::size_t chunk) {
  pctx::TerminalFilter filter;
  std::string out;
  for (std::size_t at = 0; at < input.size(); at += chunk) out += filter.feed(input.substr(at, chunk));
  return out + filter.finish();
}

// The length of the one kind of escape sequence that may pass, or 0.
std::size_t allowed_sequence(std::string_view text) {
  if (text.substr(0, 2) != "\x1b[") return 0;
  const std::size_t end = text.find_first_not_of("0123456789;:", 2);
  if (end == text.npos || (text[end] != 'm' && text[end] != 'K')) return 0;
  if (text[end] == 'K' && text.substr(2, end - 2).find_first_not_of("012") != text.npos) return 0;
  return end + 1 <= pctx::TerminalFilter::kMaxSequence ? end + 1 : 0;
}

void require_displayable(std::string_view text, std::string_view allowed_controls, bool allow_sequences) {
  while (!text.empty()) {
    if (text[0] == '\x1b') {
      const std::size_t length = allow_sequences ? allowed_sequence(text) : 0;
      require(length > 0);
      text.remove_prefix(length);
      continue;
    }
    char32_t c = 0;
    std::mbstate_t state{};
    const std::size_t length = text[0] == '\0' ? 1 : std::mbrtoc32(&c, text.data(), text.size(), &state);
    require(length >= 1 && length <= 4);
    const bool control = c < 0x20 || (c >= 0x7f && c <= 0x9f);
    require(!control || (c < 0x80 && allowed_controls.find(static_cast<char>(c)) != allowed_controls.npos));
    require(!(c >= 0x202a && c <= 0x202e) && !(c >= 0x2066 && c <= 0x2069));
    text.remove_prefix(length);
  }
}

std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
    } else if (text.at(i + 1) == '\\') {
      out += text[++i];
    } else {
      require(text[i + 1] == 'x');
      out += static_cast<char>(std::stoi(std::string(text.substr(i + 2, 2)), nullptr, 16));
      i += 3;
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool utf8 = std::setlocale(LC_CTYPE, "C.UTF-8") != nullptr;
  require(utf8);
  const std::string input(reinterpret_cast<const char*>(data), size);

  const std::string whole = filter_in_chunks(input, size + 1);
  require_displayable(whole, "\n\r\t\b", true);
  require(whole.size() <= 4 * size + 4);
  for (const std::size_t chunk : {1U, 2U, 3U, 5U, 31U}) require(filter_in_chunks(input, chunk) == whole);

  const std::string printable = pctx::printable_path(input);
  require_displayable(printable, "", false);
  require(unescape(printable) == input);
  return 0;
}
