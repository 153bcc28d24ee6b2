#include "env/key.h"

#include <gtest/gtest.h>

namespace pctx::env {
namespace {

const Interpreter kPython{"/usr/bin/python3.11", "/usr", "3.11.2", "cpython", "linux-x86_64", "glibc 2.36"};

std::string key_of(const std::vector<std::string>& texts, const Interpreter& python = kPython, bool source = false) {
  return make_key(*parse_requirements(texts, false), python, source);
}

TEST(Key, is_the_same_for_what_means_the_same) {
  EXPECT_EQ(key_of({"pandas", "numpy"}), key_of({"numpy", "pandas "}));
  EXPECT_EQ(key_of({"Foo.Bar>=1 , <2"}), key_of({"foo-bar<2,>=1"}));
  EXPECT_TRUE(is_key(key_of({"pandas"})));
}

TEST(Key, differs_for_every_part) {
  std::vector<std::string> keys{key_of({"pandas"}), key_of({"pandas==2.2.3"}), key_of({"pandas", "numpy"}),
                                key_of({"pandas"}, kPython, true)};
  for (std::string Interpreter::*part : {&Interpreter::executable, &Interpreter::version, &Interpreter::implementation,
                                         &Interpreter::platform, &Interpreter::libc}) {
    Interpreter other = kPython;
    other.*part += "x";
    keys.push_back(key_of({"pandas"}, other));
  }
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::unique(keys.begin(), keys.end()), keys.end());
}

TEST(Key, is_a_folder_name_and_nothing_else) {
  for (const char* text : {"", "..", "../0123456789abcdef0123456789abc", "0123456789ABCDEF0123456789ABCDEF",
                           "0123456789abcdef0123456789abcde", "0123456789abcdef0123456789abcdef0"})
    EXPECT_FALSE(is_key(text)) << text;
}

TEST(Interpreter, answers_are_read_strictly) {
  const auto python = parse_interpreter("cpython\n3.11.2\n/usr/bin/python3.11\n/usr\nlinux-x86_64\nglibc 2.36\n");
  ASSERT_TRUE(python.has_value());
  EXPECT_EQ(python->minor(), "3.11");
  EXPECT_TRUE(python->is_system());
  for (const char* text :
       {"", "cpython\n3.11.2\n", "cpython\nx\n/usr/bin/python3\n/usr\nlinux-x86_64\n\n",
        "cpython\n3.11.2\npython3\n/usr\nlinux-x86_64\n\n", "cpython\n3.11.2\n/usr/bin/python3\n/\nlinux-x86_64\n\n",
        "cpython\n3.11.2\n/usr/bin/python3\nusr\nlinux-x86_64\n\n", "cpython\n2.7.18\n/usr/bin/python2\n/usr\nl\n\n"})
    EXPECT_FALSE(parse_interpreter(text).has_value()) << text;
}

TEST(Interpreter, is_lent_only_when_a_box_does_not_have_it) {
  Policy policy;
  lend_interpreter(policy, kPython);
  EXPECT_TRUE(policy.binds.empty());
  Interpreter own = kPython;
  own.executable = "/opt/python/bin/python3.11";
  own.prefix = "/opt/python";
  lend_interpreter(policy, own);
  ASSERT_EQ(policy.binds.size(), 1U);
  EXPECT_EQ(policy.binds[0].source, "/opt/python");
  EXPECT_FALSE(policy.binds[0].writable);
}

}  // namespace
}  // namespace pctx::env
