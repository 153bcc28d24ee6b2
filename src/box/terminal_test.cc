#include "box/terminal.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pctx {
namespace {

std::string filtered(std::string_view input) {
  TerminalFilter filter;
  std::string out = filter.feed(input);
  return out + filter.finish();
}

TEST(Terminal, passes_text_line_motion_and_utf8) {
  for (const std::string_view text : {"plain text ~", "a\nb\r\nc\td\b", "gr\u00fc\u00dfe \u65e5\u672c\u8a9e \U0001f600",
                                      "\u05e9\u05dc\u05d5\u05dd", "C:\\x9b"}) {
    EXPECT_EQ(filtered(text), text);
  }
}

TEST(Terminal, passes_colours_and_erase_in_line) {
  for (const std::string_view text : {"\x1b[31mred\x1b[0m", "\x1b[1;38;5;208mx\x1b[m", "\x1b[38:2::255:0:0my\x1b[0m",
                                      "50%\r\x1b[K", "\x1b[0K\x1b[1K\x1b[2K"}) {
    EXPECT_EQ(filtered(text), text);
  }
}

TEST(Terminal, shows_every_other_escape_sequence) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\x1b]0;title\a", "^[]0;title^G"},                    // window title
      {"\x1b]52;c;ZXZpbA==\x1b\\", "^[]52;c;ZXZpbA==^[\\"},  // clipboard
      {"\x1b]8;;http://x\x1b\\y", "^[]8;;http://x^[\\y"},    // link whose text lies
      {"\x1bP$q\"p\x1b\\", "^[P$q\"p^[\\"},                  // DCS: the terminal types the answer
      {"\x1b[6n", "^[[6n"},                                  // cursor report
      {"\x1b[c", "^[[c"},                                    // device attributes
      {"\x1b[21t", "^[[21t"},                                // title report
      {"\x1b[?1049h", "^[[?1049h"},                          // alternate screen
      {"\x1b[?25l", "^[[?25l"},                              // hidden cursor
      {"\x1b[>4;1m", "^[[>4;1m"},                            // ends in m, but sets key reports
      {"\x1b[1 m", "^[[1 m"},                                // intermediate byte
      {"\x1b[2J\x1b[H", "^[[2J^[[H"},                        // wiping what was there
      {"\x1b[1A", "^[[1A"},                                  // rewriting earlier lines
      {"\x1b[3K", "^[[3K"},                                  // no such erase
      {"\x1b[1;1K", "^[[1;1K"},
      {"\x1b"
       "c",
       "^[c"},                                       // full reset
      {"\x1b(0", "^[(0"},                            // line-drawing letters
      {"\x1b\x1b[31mx\x1b[m", "^[\x1b[31mx\x1b[m"},  // what follows a stray ESC is judged afresh
  };
  for (const auto& [input, expected] : cases) EXPECT_EQ(filtered(input), expected);
}

TEST(Terminal, shows_controls_in_every_encoding) {
  EXPECT_EQ(filtered(std::string_view("\0\x01\a\v\f\x0e\x7f", 7)), "^@^A^G^K^L^N^?");
  EXPECT_EQ(filtered("\x9b"
                     "6n"),
            "\\x9b6n");
  EXPECT_EQ(filtered("\xc2\x9b"
                     "6n"),
            "\\u009b6n");
  EXPECT_EQ(filtered("\xc2\x80\xc2\x9f\xc2\xa0"), "\\u0080\\u009f\xc2\xa0");
}

TEST(Terminal, shows_bidirectional_overrides_but_not_their_neighbours) {
  EXPECT_EQ(filtered("\u202a\u202e\u2066\u2069"), "\\u202a\\u202e\\u2066\\u2069");
  EXPECT_EQ(filtered("\u2027\u202f\u2065\u206a"), "\u2027\u202f\u2065\u206a");
}

TEST(Terminal, shows_what_ends_a_line_and_what_nobody_sees) {
  EXPECT_EQ(filtered("\u2028\u2029\U000e0001\U000e007f"), "\\u2028\\u2029\\U000e0001\\U000e007f");
  EXPECT_EQ(filtered("\U000e0080"), "\U000e0080");
}

TEST(Terminal, shows_invalid_utf8_byte_by_byte) {
  EXPECT_EQ(filtered("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(filtered("\xc0\x9b"), "\\xc0\\x9b");                    // overlong C1
  EXPECT_EQ(filtered("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");           // overlong C1
  EXPECT_EQ(filtered("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // surrogate
  EXPECT_EQ(filtered("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past U+10FFFF
  EXPECT_EQ(filtered("\xe2\x82"
                     "A"),
            "\\xe2\\x82"
            "A");                                        // cut short by text
  EXPECT_EQ(filtered("\xe2\x1b[6n"), "\\xe2^[[6n");      // an ESC does not hide behind a lead byte
  EXPECT_EQ(filtered("\xe2\xc3\xa9"), "\\xe2\xc3\xa9");  // the next character survives
}

TEST(Terminal, shows_a_sequence_that_is_too_long) {
  const std::string longest = "\x1b[" + std::string(TerminalFilter::kMaxSequence - 3, '0') + "m";
  ASSERT_EQ(longest.size(), TerminalFilter::kMaxSequence);
  EXPECT_EQ(filtered(longest), longest);
  const std::string longer = "\x1b[" + std::string(TerminalFilter::kMaxSequence - 2, '0') + "m";
  EXPECT_EQ(filtered(longer), "^[" + longer.substr(1));
}

TEST(Terminal, holds_back_a_bounded_number_of_bytes) {
  TerminalFilter filter;
  const std::string flood = "\x1b[" + std::string(1'000'000, ';');
  EXPECT_GE(filter.feed(flood).size(), flood.size() - TerminalFilter::kMaxSequence);
}

TEST(Terminal, shows_what_is_unfinished_at_the_end) {
  EXPECT_EQ(filtered("a\x1b"), "a^[");
  EXPECT_EQ(filtered("a\x1b[31"), "a^[[31");
  EXPECT_EQ(filtered("a\xe2\x82"), "a\\xe2\\x82");
}

TEST(Terminal, resets_colours_left_on) {
  EXPECT_EQ(filtered("\x1b[8mhidden"), "\x1b[8mhidden\x1b[0m");
  EXPECT_EQ(filtered("\x1b[8mhidden\x1b[0m"), "\x1b[8mhidden\x1b[0m");
  EXPECT_EQ(filtered("\x1b[8mhidden\x1b[00m"), "\x1b[8mhidden\x1b[00m");
  TerminalFilter filter;
  filter.feed("\x1b[31m");
  EXPECT_EQ(filter.finish(), "\x1b[0m");
  EXPECT_EQ(filter.finish(), "");
}

TEST(Terminal, does_not_depend_on_how_the_input_is_cut) {
  const std::string input =
      "a\x1b[31mred\x1b[0m\x1b]52;c;eA==\a\xe2\x82\xac\xe2\x82\xc2\x9b\x9b"
      "6n\xe2\x80\xae\x1b[?1h\x1b\x1b[K\xf0\x9f\x98\x80"
      "\x1b[1;2;3;4;5;6;7;8;9;10;11;12;13;14;15m\x1b[2K\xed\xa0\x80\x1b[3";
  const std::string whole = filtered(input);
  for (std::size_t first = 0; first <= input.size(); ++first) {
    for (std::size_t second = first; second <= input.size(); ++second) {
      TerminalFilter filter;
      std::string out = filter.feed(std::string_view(input).substr(0, first));
      out += filter.feed(std::string_view(input).substr(first, second - first));
      out += filter.feed(std::string_view(input).substr(second));
      ASSERT_EQ(out + filter.finish(), whole) << "cut at " << first << " and " << second;
    }
  }
}

}  // namespace
}  // namespace pctx
