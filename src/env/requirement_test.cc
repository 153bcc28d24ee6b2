#include "env/requirement.h"

#include <gtest/gtest.h>

namespace pctx::env {
namespace {

std::string text_of(std::string_view text, bool allow_urls = false) {
  const auto parsed = parse_requirement(text, allow_urls);
  return parsed ? parsed->text() : "refused: " + parsed.error().what;
}

std::vector<std::string> texts_of(const std::vector<std::string>& texts) {
  std::vector<std::string> result;
  const auto parsed = parse_requirements(texts, false);
  for (const Requirement& requirement : *parsed) result.push_back(requirement.text());
  return result;
}

TEST(Requirement, order_case_and_blanks_do_not_matter) {
  EXPECT_EQ(texts_of({"pandas", "numpy"}), texts_of({"numpy", "pandas "}));
  EXPECT_EQ(texts_of({"Pandas", "pandas", " PANDAS"}), std::vector<std::string>{"pandas"});
  EXPECT_EQ(text_of("Foo__Bar.-baz"), "foo-bar-baz");
  EXPECT_EQ(text_of("pandas >= 2.0 , <3"), text_of("pandas<3,>=2.0"));
  EXPECT_EQ(text_of("pandas (==2.2.3)"), "pandas==2.2.3");
  EXPECT_EQ(text_of("pandas==v2.2.3RC1"), "pandas==2.2.3rc1");
  EXPECT_EQ(text_of("uvicorn[ Standard , a_b,standard ]"), "uvicorn[a-b,standard]");
}

TEST(Requirement, markers_are_kept) {
  EXPECT_EQ(text_of("tomli ;  python_version   < '3.11'"), "tomli; python_version < '3.11'");
  EXPECT_EQ(text_of("a>=1;os_name=='a  b'"), "a>=1; os_name=='a  b'");
  EXPECT_EQ(text_of("a; (python_version<'3') or extra == \"x\""), "a; (python_version<'3') or extra == \"x\"");
}

TEST(Requirement, nothing_in_it_chooses_where_a_package_comes_from) {
  for (const char* text : {"--index-url http://evil.example/simple",
                           "-r requirements.txt",
                           "-e .",
                           "--pre",
                           "-",
                           "http://evil.example/x.whl",
                           "git+https://evil.example/x",
                           "file:///etc/passwd",
                           ".",
                           "./x",
                           "../x",
                           "/etc/passwd",
                           "~/x",
                           "x/y",
                           "x.whl",
                           "x-1.0.tar.gz",
                           "requirements.txt",
                           "x @ https://evil.example/x.whl",
                           "x@https://evil.example/x.whl",
                           "x[a] @ file:///x",
                           "C:\\x",
                           "\\\\host\\x"})
    EXPECT_TRUE(text_of(text).starts_with("refused: ")) << text;
}

TEST(Requirement, nothing_in_it_starts_a_line_or_a_variable) {
  for (const char* text : {"pandas\n--index-url http://evil.example",
                           "pandas\r\nx",
                           "pandas ${HOME}",
                           "pandas # x",
                           "pandas\\\n",
                           "pand\x1b[31mas",
                           "pand\xc3\xa4s",
                           "pandas; '\n'",
                           "pandas --hash=sha256:00",
                           "pandas==1 --index-url=x",
                           "pandas==1 numpy",
                           "pandas numpy",
                           "",
                           " ",
                           "pandas==",
                           "pandas==x",
                           "pandas>=1,",
                           "pandas[",
                           "pandas[a",
                           "pandas[]]",
                           "pandas(>=1",
                           "=1",
                           ">=1",
                           "a; ",
                           "a; x == 'y",
                           "a; `id`",
                           "-pandas",
                           "pandas-",
                           "_x"})
    EXPECT_TRUE(text_of(text).starts_with("refused: ")) << text << " became " << text_of(text);
  EXPECT_TRUE(text_of(std::string(5000, 'a')).starts_with("refused: "));
}

TEST(Requirement, addresses_need_a_configuration_that_allows_them) {
  EXPECT_EQ(text_of("x @ https://example.org/x-1-py3-none-any.whl", true),
            "x @ https://example.org/x-1-py3-none-any.whl");
  EXPECT_EQ(text_of("X[b,a]@file:///w/x.whl ; os_name == 'posix'", true),
            "x[a,b] @ file:///w/x.whl ; os_name == 'posix'");
  for (const char* text : {"x @ ext::sh -c id", "x @ ssh://h/x", "https://example.org/x.whl", "--index-url x", "./x",
                           "x @ git+ssh://h/x", "x @ git+file:///x", "x @ "})
    EXPECT_TRUE(text_of(text, true).starts_with("refused: ")) << text;
}

TEST(Requirement, a_message_shows_what_was_written_without_obeying_it) {
  const auto parsed = parse_requirement("x\x1b]52;c;aaaa\x07", false);
  ASSERT_FALSE(parsed.has_value());
  EXPECT_EQ(parsed.error().what.find('\x1b'), std::string::npos);
  EXPECT_EQ(parsed.error().kind, ErrorKind::usage);
}

}  // namespace
}  // namespace pctx::env
