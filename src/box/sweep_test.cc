#include "box/sweep.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/fd.h"
#include "base/units.h"

namespace pctx {
namespace {

// Files as /proc has them.
class SweepOf : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "sweep-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    root_ = folder;
    add("1", "0", 100);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void add(const std::string& pid, const std::string& parent, int kibibytes, int shared_by = 1) {
    std::filesystem::create_directories(root_ / pid / "fd");
    write(pid + "/status", "Name:\tx\nPPid:\t" + parent + "\nVmRSS:\t1 kB\nRssAnon:\t" + std::to_string(kibibytes) +
                               " kB\nThreads:\t1\n");
    write(pid + "/smaps_rollup", "0 rollup\nPss_Anon:\t" + std::to_string(kibibytes / shared_by) + " kB\n");
    write(pid + "/maps", "");
  }
  void write(const std::string& path, const std::string& text) const { std::ofstream{root_ / path} << text; }
  void link(const std::string& pid, const std::string& descriptor, const std::string& target) const {
    std::filesystem::create_symlink(target, root_ / pid / "fd" / descriptor);
  }

  Sweep swept(const Sweep::Wanted& wanted) {
    proc_ = Fd{::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
    Sweep sweep{proc_.get(), wanted};
    while (sweep.step()) {
    }
    return sweep;
  }

  std::filesystem::path root_;

 private:
  Fd proc_;
};

TEST_F(SweepOf, processes_splits_what_they_share) {
  for (const char* pid : {"7", "8", "9", "10"}) add(pid, "1", 40'000, 4);
  EXPECT_EQ(swept({.exact = true}).exact().own, 40'100_KiB);
  EXPECT_TRUE(swept({.highest = 150_MiB}).counted_exactly());
  EXPECT_FALSE(swept({.highest = 160_MiB}).counted_exactly());
}

TEST_F(SweepOf, a_child_before_its_exec_counts_once_whenever_that_comes) {
  add("7", "1", 40'000);
  add("8", "7", 40'000);
  EXPECT_EQ(swept({.exact = true}).exact().own, 80'100_KiB) << "nobody waits: a fork with pages of its own";
  std::filesystem::create_directories(root_ / "7/task/7");
  write("7/task/7/wchan", "wait_for_vfork_done");
  Sweep sweep = swept({.exact = true});
  EXPECT_EQ(sweep.exact().own, 40'100_KiB);
  write("7/task/7/wchan", "0");
  add("8", "7", 300);
  EXPECT_EQ(sweep.exact().own, 40'400_KiB) << "after the two were read";
  std::filesystem::remove_all(root_ / "8");
  EXPECT_EQ(sweep.exact().own, 40'100_KiB) << "and ended";
}

TEST_F(SweepOf, a_parent_that_runs_is_given_some_looks_to_come_to_wait) {
  add("7", "1", 40'000);
  for (const char* pid : {"8", "9"}) add(pid, "7", 40'000);
  std::filesystem::create_directories(root_ / "7/task/7");
  write("7/task/7/wchan", "0");
  Sweep first = swept({.exact = true});
  EXPECT_EQ(first.exact().own, 80'100_KiB) << "one child of each parent";
  EXPECT_TRUE(first.doubted());
  EXPECT_EQ(swept({.exact = true, .doubts = 2}).exact().own, 80'100_KiB);
  Sweep last = swept({.exact = true, .doubts = 3});
  EXPECT_EQ(last.exact().own, 120'100_KiB) << "not for long";
  EXPECT_FALSE(last.doubted());
  write("7/task/7/wchan", "do_wait");
  EXPECT_EQ(swept({.exact = true}).exact().own, 120'100_KiB) << "it waits for something else";
}

TEST_F(SweepOf, a_child_that_ends_leaves_its_pages_to_its_parent) {
  add("7", "1", 40'000, 2);
  add("8", "7", 40'000, 2);
  Sweep sweep = swept({.exact = true});
  EXPECT_EQ(sweep.exact().own, 40'100_KiB);
  std::filesystem::remove_all(root_ / "8");
  add("7", "1", 40'000);
  EXPECT_EQ(sweep.exact().own, 40'100_KiB);
}

TEST_F(SweepOf, one_process_needs_no_exact_figure) {
  add("7", "1", 40'000);
  EXPECT_FALSE(swept({}).counted_exactly());
}

TEST_F(SweepOf, a_chain_of_forks_counts_ancestors_and_orphans) {
  add("7", "1", 1);
  add("8", "7", 1);
  write("8/maps", "a\nb\n");
  EXPECT_EQ(swept({.mappings = true}).kept(), 2U * (256 + 2 * 64));
  add("9", "1", 1);
  EXPECT_EQ(swept({.mappings = true}).kept(), 2U * (256 + 3 * 64));
}

TEST_F(SweepOf, open_files_of_proc_count_with_the_longest_line_that_was_seen) {
  add("7", "1", 1);
  link("7", "3", "/proc/7/maps");
  link("7", "4", "/process");
  EXPECT_EQ(swept({.mappings = true}).kept(), 4_KiB);
  EXPECT_EQ(swept({.mappings = true, .longest_line = 20'000}).kept(), 32_KiB);
  EXPECT_FALSE(swept({.mappings = true, .longest_line = 20'000}).hidden());
}

TEST_F(SweepOf, a_line_beyond_reason_hides_something) {
  add("7", "1", 1);
  write("7/maps", std::string(65'000, 'x') + "\n");
  EXPECT_FALSE(swept({.mappings = true}).hidden());
  write("7/maps", std::string(300'000, 'x') + "\n");
  EXPECT_TRUE(swept({.mappings = true}).hidden());
}

}  // namespace
}  // namespace pctx
