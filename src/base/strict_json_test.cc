#include "base/strict_json.h"

#include <gtest/gtest.h>

namespace pctx {
namespace {

Error json_complaint(std::string_view text) {
  const auto json = parse_strict_json<Json>(text, 1000);
  EXPECT_FALSE(json.has_value()) << text;
  if (json) return {};
  EXPECT_EQ(json.error().kind, ErrorKind::usage) << text;
  EXPECT_NE(json.error().hint, "") << text;
  return json.error();
}

TEST(StrictJson, reads_what_is_right) {
  EXPECT_EQ(*parse_strict_json<Json>(R"({"a": {"b": [1, {"b": 2}, {"b": 3}]}, "b": null})", 1000),
            Json::parse(R"({"a": {"b": [1, {"b": 2}, {"b": 3}]}, "b": null})"));
}

TEST(StrictJson, a_mistake_has_its_place) {
  EXPECT_EQ(json_complaint(R"({"limits": {"pids": 5, }})").what, "not valid JSON at line 1, column 24");
  EXPECT_EQ(json_complaint("{\n  \"a\": 1\n  \"b\": 2\n}").what, "not valid JSON at line 3, column 5");
  EXPECT_EQ(json_complaint("{\"\xc3\xa9\xc3\xa9\": }").what, "not valid JSON at line 1, column 8")
      << "characters, not bytes";
  EXPECT_EQ(json_complaint("[]\n []").what, "something stands behind the JSON, at line 2, column 2");
  EXPECT_EQ(json_complaint("[\"\xff\"]").what, "not UTF-8 at line 1, column 3");
  EXPECT_EQ(json_complaint("\xff\xfe[").what, "not UTF-8 at line 1, column 1");
  EXPECT_EQ(json_complaint("[\"\u00ff\", x]").what, "not valid JSON at line 1, column 7");
  EXPECT_EQ(json_complaint("{\n").what, "not valid JSON at line 2, column 1");
  EXPECT_EQ(json_complaint("[1e999]").what, "a number is too large to be read");
}

TEST(StrictJson, a_key_that_stands_twice_is_named_from_the_top) {
  EXPECT_EQ(json_complaint(R"({"limits": {"memory": 1, "memory": 2}})").what, "the key 'limits.memory' stands twice");
  EXPECT_EQ(json_complaint(R"({"a": [0, [1], {"b": 1, "b": 2}], "a": 0})").what, "the key 'a[2].b' stands twice");
  EXPECT_EQ(json_complaint("{\"\\u001b[31m\": 1, \"\\u001b[31m\": 2}").what, "the key '\\u001b[31m' stands twice");
}

TEST(StrictJson, has_bounds) {
  EXPECT_EQ(json_complaint(std::string(1001, ' ')).what, "larger than 1000 bytes");
  EXPECT_EQ(json_complaint(std::string(100, '[') + std::string(100, ']')).what, "nested deeper than 8 levels");
  EXPECT_EQ(json_complaint(std::string(100, '[')).what, "nested deeper than 8 levels");
}

}  // namespace
}  // namespace pctx
