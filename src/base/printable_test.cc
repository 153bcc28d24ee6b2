#include "base/printable.h"

#include <gtest/gtest.h>

#include <string_view>

namespace pctx {
namespace {

TEST(PrintableJson, escapes_what_a_terminal_would_act_on) {
  const std::string plain = "{\n  \"key\": \"gr\u00fc\u00dfe \\u001b \u65e5 \U0001f600 ~\"\n}";
  EXPECT_EQ(printable_json(plain), plain);
  EXPECT_EQ(printable_json("\"\x7f\u0080\u009f\u00a0\""), "\"\\u007f\\u0080\\u009f\u00a0\"");
  EXPECT_EQ(printable_json("\"\u2027\u2028\u202e\u202f\u2066\u2069\""), "\"\u2027\\u2028\\u202e\u202f\\u2066\\u2069\"");
  EXPECT_EQ(printable_json("\"\U000e0000\U000e007f\U000e0080\""), "\"\\udb40\\udc00\\udb40\\udc7f\U000e0080\"");
}

TEST(PrintablePath, passes_displayable_names) {
  for (const std::string_view name : {"", "a/b c.txt", "gr\u00fc\u00dfe", "\U0001f600"}) {
    EXPECT_EQ(printable_path(name), name);
  }
}

TEST(PrintablePath, escapes_reversibly) {
  EXPECT_EQ(printable_path("a\nb\x1b\x7f"), "a\\x0ab\\x1b\\x7f");
  EXPECT_EQ(printable_path("\\x41"), "\\\\x41");  // not to be mistaken for an escaped A
  EXPECT_EQ(printable_path("\xff\xc3\xa9\xc3"), "\\xff\xc3\xa9\\xc3");
  EXPECT_EQ(printable_path("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(printable_path("exe\u202etxt"), "exe\\xe2\\x80\\xaetxt");
  EXPECT_EQ(printable_path(std::string_view("\0", 1)), "\\x00");
}

TEST(PrintableLine, leaves_what_was_escaped) {
  EXPECT_EQ(printable_line("a\nb\x1b[2J gr\u00fc\u00dfe"), "a\\x0ab\\x1b[2J gr\u00fc\u00dfe");
  EXPECT_EQ(printable_line(printable_path("a\nb\\")), printable_path("a\nb\\"));
}

}  // namespace
}  // namespace pctx
