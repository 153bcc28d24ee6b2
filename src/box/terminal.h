// Text of the guest's making, made safe to show. A terminal executes what it is shown: titles, the clipboard (OSC
// 52), answers typed back as if the user had typed them (cursor and status reports), mode switches. So only text, line
// motion and colour pass; everything else is made visible instead of dropped, so that an attempt is seen.
// Pure: no descriptor, no locale.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pctx {

// Keeps the state of one stream. The concatenated output does not depend on how the input is cut into chunks, and
// at most kMaxSequence bytes are held back.
class TerminalFilter {
 public:
  // An escape sequence longer than this is text: real colour sequences are at most 20 bytes or so.
  static constexpr std::size_t kMaxSequence = 32;

  // Passes UTF-8 text, \n \r \t \b, ESC [ … m (colours) and ESC [ n K (erase in line). Shown as text:
  // `^[` `^G` `^?` for C0 and DEL, `\x9b` for bytes that are not UTF-8, `\u009b` and `\u202e` for encoded C1 and bidi.
  std::string feed(std::string_view bytes);

  // What was held back, and a colour reset if the guest left one on: it must not hide or colour what we print next.
  // The filter is then as new.
  std::string finish();

 private:
  void accept(char byte, std::string& out);
  void accept_in_sequence(char byte, std::string& out);
  void accept_in_character(char byte, std::string& out);
  void accept_fresh(char byte, std::string& out);
  void pass_sequence(std::string& out);
  void show_pending(std::string& out);

  std::string pending_;  // empty, the start of an escape sequence, or the start of a UTF-8 character
  bool styled_ = false;  // the last colour sequence was not a reset
};

}  // namespace pctx
