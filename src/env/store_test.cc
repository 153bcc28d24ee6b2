#include "env/store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

namespace pctx::env {
namespace {

StoredEnvironment stored(std::uint64_t bytes, std::int64_t last_use, bool damaged = false) {
  StoredEnvironment entry;
  entry.record.size.bytes = bytes;
  entry.last_use = last_use;
  entry.damaged = damaged;
  return entry;
}

using Chosen = std::vector<std::size_t>;

TEST(Prune, takes_the_longest_unused_until_the_rest_fits) {
  const std::vector<StoredEnvironment> all{stored(10, 300), stored(10, 100), stored(10, 200)};
  PruneLimits limits;
  EXPECT_EQ(choose_to_prune(all, limits, 1000), Chosen{});
  limits.max_size = 30;
  EXPECT_EQ(choose_to_prune(all, limits, 1000), Chosen{});
  limits.max_size = 15;
  EXPECT_EQ(choose_to_prune(all, limits, 1000), (Chosen{1, 2}));
  limits.max_size = 0;
  EXPECT_EQ(choose_to_prune(all, limits, 1000), (Chosen{1, 2, 0}));
}

TEST(Prune, takes_the_old_the_damaged_and_all) {
  const std::vector<StoredEnvironment> all{stored(10, 900), stored(10, 100), stored(10, 950, true)};
  PruneLimits limits;
  EXPECT_EQ(choose_to_prune(all, limits, 1000), Chosen{2}) << "a damaged one is of no use";
  limits.older_than = Millis{500'000};
  EXPECT_EQ(choose_to_prune(all, limits, 1000), (Chosen{1, 2}));
  limits.all = true;
  EXPECT_EQ(choose_to_prune(all, limits, 1000), (Chosen{1, 0, 2}));
}

Record sample() {
  Record record;
  record.key = std::string(32, 'a');
  record.requested = {"pandas>=2"};
  record.python = {"/usr/bin/python3.11", "/usr", "3.11.2", "cpython", "linux-x86_64", "glibc 2.36"};
  record.packages = {{"pandas", "2.2.3", std::string(64, 'b'), false}, {"old", "1", "", true}};
  record.modules = {{"pandas", {"pandas"}}};
  record.built = "2026-01-01T00:00:00Z";
  record.network = "host";
  record.uv = "1.0";
  record.seconds = 1.25;
  record.size = {3, 2, 1};
  return record;
}

TEST(Record, survives_its_own_json) {
  const auto again = record_from_json(record_to_json(sample()));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(record_to_json(*again), record_to_json(sample()));
  EXPECT_EQ(again->packages[1].sha256, "");
  EXPECT_TRUE(again->packages[1].source);
}

TEST(Record, what_is_no_record_is_refused) {
  for (const char* text : {"", "{}", "[]", "null", "{\"format\": 1}", "{\"format\": 2}", "{\"format\": 1, \"key\": 5}"})
    EXPECT_FALSE(record_from_json(text).has_value()) << text;
}

class Tree : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/tree-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    make("a");
    make("a/b c");
    write("a/b c/x.py", "x = 1\n");
    write("a/y\n.py", "y");
    ASSERT_EQ(::symlink("/etc/passwd", (folder_ + "/a/link").c_str()), 0);
    top_ = Fd{::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(AT_FDCWD, folder_).has_value()); }
  void make(const std::string& name) const { ASSERT_EQ(::mkdir((folder_ + "/" + name).c_str(), 0755), 0); }
  void write(const std::string& name, const char* text) const { std::ofstream{folder_ + "/" + name} << text; }

  std::string folder_;
  Fd top_;
};

TEST_F(Tree, is_frozen_and_described) {
  const auto frozen = freeze(top_.get());
  ASSERT_TRUE(frozen.has_value()) << frozen.error().what;
  EXPECT_EQ(frozen->size.files, 3U);
  EXPECT_EQ(frozen->size.folders, 2U);
  EXPECT_NE(frozen->manifest.find("F 6 a/b\\x20c/x.py\n"), std::string::npos) << frozen->manifest;
  EXPECT_NE(frozen->manifest.find("F 1 a/y\\x0a.py\n"), std::string::npos) << frozen->manifest;
  EXPECT_NE(frozen->manifest.find("L /etc/passwd a/link\n"), std::string::npos) << frozen->manifest;
  struct stat status {};
  ASSERT_EQ(::stat((folder_ + "/a/b c/x.py").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0444U);
  EXPECT_TRUE(folders_are_unchanged(top_.get(), frozen->manifest, 2));
  EXPECT_TRUE(compare_with_manifest(top_.get(), frozen->manifest)->empty());
  EXPECT_FALSE(folders_are_unchanged(top_.get(), frozen->manifest, 3)) << "a manifest that was cut off";
}

TEST_F(Tree, a_removed_file_is_noticed) {
  const auto frozen = freeze(top_.get());
  ASSERT_EQ(::chmod((folder_ + "/a/b c").c_str(), 0755), 0);
  ASSERT_EQ(::unlink((folder_ + "/a/b c/x.py").c_str()), 0);
  EXPECT_FALSE(folders_are_unchanged(top_.get(), frozen->manifest, 2));
  EXPECT_EQ(*compare_with_manifest(top_.get(), frozen->manifest),
            std::vector<std::string>{"a/b\\x20c/x.py is missing"});
}

TEST_F(Tree, links_are_never_followed) {
  EXPECT_EQ(read_below(top_.get(), "a/link", 1_MiB), "");
  ASSERT_EQ(::symlink("/etc", (folder_ + "/etc").c_str()), 0);
  EXPECT_EQ(read_below(top_.get(), "etc/passwd", 1_MiB), "");
  EXPECT_TRUE(names_below(top_.get(), "etc").empty());
  EXPECT_EQ(read_below(top_.get(), "a/b c/x.py", 1_MiB), "x = 1\n");
  EXPECT_EQ(read_below(top_.get(), "a/b c/x.py", 2), "") << "too large";
}

TEST_F(Tree, pipes_and_closed_folders_are_handled) {
  make("closed");
  make("closed/inner");
  ASSERT_EQ(::chmod((folder_ + "/closed").c_str(), 0), 0);
  EXPECT_TRUE(freeze(top_.get()).has_value());
  ASSERT_EQ(::chmod((folder_ + "/a").c_str(), 0755), 0);
  ASSERT_EQ(::mkfifo((folder_ + "/a/pipe").c_str(), 0644), 0);
  EXPECT_FALSE(freeze(top_.get()).has_value());
}

TEST_F(Tree, however_deep_it_is_removed) {
  Fd at{::dup(top_.get())};
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), "d", 0755), 0);
    at = Fd{::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  }
  EXPECT_FALSE(freeze(top_.get()).has_value()) << "too deep to be published";
}  // TearDown removes it

}  // namespace
}  // namespace pctx::env
