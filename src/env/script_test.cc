#include "env/script.h"

#include <gtest/gtest.h>

namespace pctx::env {
namespace {

using List = std::vector<std::string>;

TEST(Script, metadata_is_read_from_its_comment_block) {
  const auto found = read_script_metadata(
      "#!/usr/bin/env python3\n"
      "# /// script\n"
      "# requires-python = '>=3.11'  # why\n"
      "# dependencies = [\n"
      "#   \"pandas>=2,<3\",\n"
      "#   # not this one: \"evil\",\n"
      "#   'tomli; python_version < \"3.11\"',\n"
      "#   \"a; os_name == \\\"posix\\\"\"\n"
      "# ]\n"
      "#\n"
      "# [tool.uv]\n"
      "# index-url = \"http://evil.example\"\n"
      "# ///\n"
      "print(1)\n");
  ASSERT_TRUE(found.has_value()) << found.error().what;
  ASSERT_TRUE(found->has_value());
  EXPECT_EQ((*found)->requires_python, ">=3.11");
  EXPECT_EQ((*found)->dependencies,
            (List{"pandas>=2,<3", "tomli; python_version < \"3.11\"", "a; os_name == \"posix\""}));
}

TEST(Script, most_scripts_have_none) {
  for (const char* text : {"", "print(1)\n", "# /// other\n# x = 1\n# ///\n", "x = '''\n  # /// script\n'''\n"}) {
    const auto found = read_script_metadata(text);
    ASSERT_TRUE(found.has_value()) << text;
    EXPECT_FALSE(found->has_value()) << text;
  }
}

TEST(Script, windows_line_ends_and_one_line_lists_work) {
  const auto found = read_script_metadata("# /// script\r\n# dependencies = [\"six\"]\r\n# ///\r\n");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ((*found)->dependencies, List{"six"});
}

TEST(Script, what_cannot_be_read_is_an_error_and_never_ignored) {
  for (const char* body :
       {"# dependencies = [\"six\"\n", "# dependencies = six\n", "# dependencies = [\"six]\n",
        "# requires-python = 3.11\n", "# dependencies [\"six\"]\n", "# depends = []\n",
        "# dependencies = [\"a\" \"b\"]\n", "# dependencies = [\"\\u0061\"]\n", "# dependencies = [] x\n"})
    EXPECT_FALSE(read_script_metadata(std::string{"# /// script\n"} + body + "# ///\n").has_value()) << body;
  EXPECT_FALSE(read_script_metadata("# /// script\n# dependencies = []\n").has_value()) << "no end";
  const std::string block = "# /// script\n# dependencies = []\n# ///\n";
  EXPECT_FALSE(read_script_metadata(block + "\n" + block).has_value()) << "two";
}

}  // namespace
}  // namespace pctx::env
