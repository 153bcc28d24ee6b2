#include "cli/own_file.h"

#include <gtest/gtest.h>

namespace pctx::cli {
namespace {

TEST(OwnFile, a_script_is_run_by_its_name) {
  EXPECT_EQ(run_own_file("s.py"), "s.py is a file of yours, which the box does not have: write pctx-sandbox run s.py");
}

TEST(OwnFile, for_anything_else_its_folder_is_lent) {
  const std::string lend =
      "a file of yours, which the box does not have; lend its folder: pctx-sandbox run --mnt . -- ";
  EXPECT_EQ(run_own_file("s.sh"), "s.sh is " + lend + "./s.sh");
  EXPECT_EQ(run_own_file("./s.sh"), "./s.sh is " + lend + "./s.sh");
  EXPECT_EQ(run_own_file("tools/s"), "tools/s is " + lend + "./tools/s");
}

TEST(OwnFile, pythons_other_names_need_not_be_executable) {
  for (const char* name : {"s.pyw", "s.PY"})
    EXPECT_TRUE(run_own_file(name).ends_with(std::string{"--mnt . -- python3 ./"} + name));
}

TEST(OwnFile, a_word_that_a_shell_would_read_otherwise_is_quoted_or_not_part_of_an_example) {
  EXPECT_TRUE(run_own_file("a b.py").ends_with(": write pctx-sandbox run 'a b.py'"));
  EXPECT_TRUE(run_own_file("$(x)").ends_with("--mnt . -- './$(x)'"));
  EXPECT_TRUE(run_own_file("it's.py").ends_with("--mnt . -- …"));
  EXPECT_TRUE(run_own_file("a\x1b.py").ends_with("--mnt . -- …"));
  EXPECT_TRUE(run_own_file("a\x1b[31m").starts_with("a\\x1b[31m is a file"));
}

TEST(OwnFile, a_word_of_a_command_is_told_with_what_to_write_instead) {
  EXPECT_EQ(lacks_own_path({"python3", "s.py"}, "s.py").sentence(),
            "s.py is yours, and the box does not have it\nhint: write pctx-sandbox run s.py");
  EXPECT_EQ(lacks_own_path({"cat", "data.csv"}, "data.csv").sentence(),
            "data.csv is yours, and the box does not have it\n"
            "hint: if it failed for that, lend this folder: pctx-sandbox run --mnt . …");
  EXPECT_EQ(lacks_own_path({"python3", "s p.py"}, "s p.py").hint, "write pctx-sandbox run 's p.py'");
  EXPECT_NE(lacks_own_path({"cat", "s.py"}, "s.py").hint, "write pctx-sandbox run s.py");
}

}  // namespace
}  // namespace pctx::cli
