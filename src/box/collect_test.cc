#include "box/collect.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/fd.h"

namespace pctx {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

// A folder as the host lends it, and beside it what must never show up.
class Collect : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "collect_test.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    base_ = pattern;
    fs::create_directories(base_ / "mnt");
    fs::create_directories(base_ / "outside");
    write(base_ / "outside/canary", "secret");
    folder_ = Fd(::open((base_ / "mnt").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(folder_);
  }
  void TearDown() override {
    // Deeper than PATH_MAX, which std::filesystem cannot remove.
    // NOLINTNEXTLINE(cert-env33-c): the path is our own
    EXPECT_EQ(std::system(("rm -rf '" + base_.string() + "'").c_str()), 0);
  }

  fs::path mnt(const std::string& path) const { return base_ / "mnt" / path; }
  static void write(const fs::path& path, std::string_view text) { std::ofstream(path) << text; }

  FolderSnapshot snapshot(const CollectLimits& limits = {}) const {
    auto taken = take_snapshot(folder_.get(), limits);
    EXPECT_TRUE(taken) << (taken ? "" : taken.error().what);
    return taken ? *std::move(taken) : FolderSnapshot{};
  }
  // What the host lent is settled before the guest writes, as in a real run.
  FolderSnapshot snapshot_before(const CollectLimits& limits = {}) const {
    FolderSnapshot before = snapshot(limits);
    await_clock_tick(before);
    return before;
  }
  FolderChanges changes_since(const FolderSnapshot& before) const { return diff(before, snapshot()); }

  // A chain of directories built by descriptor, so that it may be longer than any path.
  void make_chain(int levels, const std::string& name, const std::string& file) const {
    Fd at(::open(mnt("").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    for (int i = 0; i < levels; ++i) {
      ASSERT_EQ(::mkdirat(at.get(), name.c_str(), 0755), 0);
      at = Fd(::openat(at.get(), name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      ASSERT_TRUE(at);
    }
    ASSERT_TRUE(Fd(::openat(at.get(), file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644)));
  }

  fs::path base_;
  Fd folder_;
};

std::string skip_reason_of(const FolderChanges& changes, const std::string& path) {
  for (const SkippedPath& skipped : changes.skipped) {
    if (skipped.path == path) return skipped.reason;
  }
  return "";
}

// Runs in a process of its own what changes the process for good. The body returns an empty string when all is well.
template <class Body>
std::string in_child(Body body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "pipe2 failed";
  const Fd reading(ends[0]);
  Fd writing(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string said = body();
    const bool told = ::write(writing.get(), said.data(), said.size()) == static_cast<ssize_t>(said.size());
    ::_exit(told ? 0 : 1);
  }
  writing.reset();
  std::string said(4096, '\0');
  const ssize_t length = ::read(reading.get(), said.data(), said.size());
  int status = 0;
  ::waitpid(child, &status, 0);
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return status == 0 ? said : "child ended with status " + std::to_string(status) + ": " + said;
}

TEST_F(Collect, lists_created_modified_and_deleted_files) {
  write(mnt("same"), "1");
  write(mnt("longer"), "1");
  write(mnt("gone"), "1");
  fs::create_directories(mnt("sub/empty"));
  write(mnt("sub/moved"), "1");
  const FolderSnapshot before = snapshot_before();
  EXPECT_EQ(std::ifstream(mnt("same")).get(), '1');
  write(mnt("longer"), "12");
  fs::remove(mnt("gone"));
  fs::rename(mnt("sub"), mnt("bus"));
  fs::create_directories(mnt("new/empty"));
  write(mnt("new/b"), "");
  write(mnt("new/a"), "");
  const FolderChanges changes = changes_since(before);
  EXPECT_EQ(changes.created, (Paths{"bus/moved", "new/a", "new/b"}));
  EXPECT_EQ(changes.modified, (Paths{"longer"}));
  EXPECT_EQ(changes.deleted, (Paths{"gone", "sub/moved"}));
  EXPECT_TRUE(changes.skipped.empty());
  EXPECT_FALSE(changes.truncated);
}

TEST_F(Collect, sees_a_change_whose_size_and_mtime_are_forged) {
  for (const char* name : {"rewritten", "replaced", "touched"}) write(mnt(name), "old!");
  struct stat old {};
  ASSERT_EQ(::stat(mnt("rewritten").c_str(), &old), 0);
  const FolderSnapshot before = snapshot_before();
  write(mnt("rewritten"), "new!");
  write(mnt("other"), "new!");
  fs::rename(mnt("other"), mnt("replaced"));
  const timespec times[2] = {old.st_atim, old.st_mtim};
  for (const char* name : {"rewritten", "replaced"}) ASSERT_EQ(::utimensat(AT_FDCWD, mnt(name).c_str(), times, 0), 0);
  fs::permissions(mnt("touched"), fs::perms::owner_exec, fs::perm_options::add);
  EXPECT_EQ(changes_since(before).modified, (Paths{"replaced", "rewritten", "touched"}));
}

TEST_F(Collect, sees_a_change_right_after_the_snapshot) {
  for (int round = 0; round < 50; ++round) {
    write(mnt("file"), "old!");
    const FolderSnapshot before = snapshot_before();
    write(mnt("file"), "new!");
    ASSERT_EQ(changes_since(before).modified, (Paths{"file"})) << "round " << round;
  }
}

TEST_F(Collect, survives_any_timestamp) {
  write(mnt("file"), "");
  const FolderSnapshot before = snapshot_before();
  for (const std::int64_t seconds : {INT64_MAX, INT64_MIN, std::int64_t{-1}}) {
    const timespec times[2] = {{seconds, 0}, {seconds, 999'999'999}};
    ASSERT_EQ(::utimensat(AT_FDCWD, mnt("file").c_str(), times, 0), 0);
    EXPECT_EQ(changes_since(before).modified, (Paths{"file"}));
  }
}

TEST_F(Collect, does_not_follow_links) {
  const FolderSnapshot before = snapshot_before();
  fs::create_directory(mnt("real"));
  write(mnt("real/canary"), "");
  fs::create_directory_symlink(base_ / "outside", mnt("folder"));
  fs::create_symlink(base_ / "outside/canary", mnt("file"));
  fs::create_symlink("loop", mnt("loop"));
  fs::create_symlink("nowhere", mnt("dangling"));
  const FolderChanges changes = changes_since(before);
  EXPECT_EQ(changes.created, (Paths{"real/canary"}));  // the control: a real directory is looked into
  ASSERT_EQ(changes.skipped.size(), 4U);
  for (const SkippedPath& skipped : changes.skipped) EXPECT_EQ(skipped.reason, "symbolic link");
}

TEST_F(Collect, does_not_follow_a_link_in_place_of_a_directory) {
  fs::create_directory(mnt("sub"));
  write(mnt("sub/file"), "");
  const FolderSnapshot before = snapshot_before();
  fs::remove_all(mnt("sub"));
  fs::create_directory_symlink("/etc", mnt("sub"));
  const FolderChanges changes = changes_since(before);
  EXPECT_TRUE(changes.created.empty());
  EXPECT_EQ(changes.deleted, (Paths{"sub/file"}));
  EXPECT_EQ(skip_reason_of(changes, "sub"), "symbolic link");
}

TEST_F(Collect, reads_nothing_outside_while_directories_and_links_are_swapped) {
  fs::create_directory(mnt("swap"));
  write(mnt("swap/inside"), "");
  fs::create_directory_symlink(base_ / "outside", mnt("link"));
  ASSERT_TRUE(fs::exists(mnt("link/canary")));  // the control: whoever follows gets there
  std::atomic<bool> done = false;
  std::thread swapper([&] {
    while (!done) {
      ::syscall(SYS_renameat2, AT_FDCWD, mnt("swap").c_str(), AT_FDCWD, mnt("link").c_str(), RENAME_EXCHANGE);
    }
  });
  for (int round = 0; round < 2000; ++round) {
    const FolderSnapshot taken = snapshot();
    for (const FolderEntry& entry : taken.entries()) EXPECT_EQ(entry.path.find("canary"), entry.path.npos);
  }
  done = true;
  swapper.join();
}

TEST_F(Collect, skips_fifos_sockets_set_id_files_and_hard_links) {
  write(mnt("was_file"), "");
  write(mnt("old_pair_a"), "");
  fs::create_hard_link(mnt("old_pair_a"), mnt("old_pair_b"));
  const FolderSnapshot before = snapshot_before();
  write(mnt("plain"), "");
  fs::remove(mnt("was_file"));
  ASSERT_EQ(::mkfifo(mnt("was_file").c_str(), 0644), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(mnt("socket").string().size(), sizeof address.sun_path);
  std::strcpy(address.sun_path, mnt("socket").c_str());
  const Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  for (const auto& [name, mode] : {std::pair{"suid", 04755}, std::pair{"sgid", 02755}}) {
    write(mnt(name), "");
    ASSERT_EQ(::chmod(mnt(name).c_str(), static_cast<mode_t>(mode)), 0);
  }
  write(mnt("pair_a"), "");
  fs::create_hard_link(mnt("pair_a"), mnt("pair_b"));
  const FolderChanges changes = changes_since(before);
  EXPECT_EQ(changes.created, (Paths{"plain"}));
  EXPECT_EQ(changes.deleted, (Paths{"was_file"}));
  EXPECT_EQ(skip_reason_of(changes, "was_file"), "FIFO");
  EXPECT_EQ(skip_reason_of(changes, "socket"), "socket");
  EXPECT_EQ(skip_reason_of(changes, "suid"), "set-id file");
  EXPECT_EQ(skip_reason_of(changes, "sgid"), "set-id file");
  EXPECT_EQ(skip_reason_of(changes, "pair_a"), "has further hard links");
  EXPECT_EQ(skip_reason_of(changes, "pair_b"), "has further hard links");
  EXPECT_EQ(changes.skipped.size(), 6U);  // not the pair that the host had
}

TEST_F(Collect, skips_devices) {
  const FolderSnapshot before = snapshot_before();
  if (::mknod(mnt("char").c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) GTEST_SKIP() << "mknod of a device needs root";
  ASSERT_EQ(::mknod(mnt("block").c_str(), S_IFBLK | 0666, makedev(7, 0)), 0);
  write(mnt("plain"), "");
  const FolderChanges changes = changes_since(before);
  EXPECT_EQ(changes.created, (Paths{"plain"}));
  EXPECT_EQ(skip_reason_of(changes, "char"), "character device");
  EXPECT_EQ(skip_reason_of(changes, "block"), "block device");
}

TEST_F(Collect, reads_300_levels_with_few_descriptors) {
  const FolderSnapshot before = snapshot_before();
  make_chain(300, "d", "bottom");
  const Fd probe(::dup(folder_.get()));
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit few{static_cast<rlim_t>(probe.get()) + 3, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const FolderSnapshot after = snapshot({.max_depth = 400});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  const FolderChanges changes = diff(before, after);
  ASSERT_EQ(changes.created.size(), 1U);
  EXPECT_EQ(changes.created[0].size(), 600U + std::strlen("bottom"));
  EXPECT_FALSE(changes.truncated);
}

TEST_F(Collect, reads_paths_longer_than_the_kernel_takes) {
  const FolderSnapshot before = snapshot_before();
  make_chain(60, std::string(200, 'n'), "bottom");
  const FolderChanges changes = changes_since(before);
  ASSERT_EQ(changes.created.size(), 1U);
  EXPECT_GT(changes.created[0].size(), std::size_t{2} * PATH_MAX);
  EXPECT_FALSE(changes.truncated);
}

TEST_F(Collect, says_so_when_a_tree_is_too_deep) {
  write(mnt("near"), "");
  make_chain(4000, "d", "bottom");
  const FolderSnapshot before = snapshot_before();
  fs::remove(mnt("near"));
  write(mnt("d/here"), "");
  const FolderChanges changes = changes_since(before);
  EXPECT_EQ(changes.created, (Paths{"d/here"}));
  EXPECT_EQ(changes.deleted, (Paths{"near"}));
  EXPECT_TRUE(changes.truncated);
  EXPECT_EQ(changes.truncated_reason, "before the run: deeper than 128 levels; after the run: deeper than 128 levels");
  EXPECT_EQ(changes.skipped.size(), 1U);
}

TEST_F(Collect, stays_within_the_budget_of_entries) {
  for (int i = 0; i < 10; ++i) write(mnt(std::to_string(i)), "");
  EXPECT_FALSE(snapshot({.max_entries = 10}).truncated());  // the control: exactly full is not over
  const FolderSnapshot before = snapshot_before();
  for (int i = 10; i < 50; ++i) write(mnt(std::to_string(i)), "");
  const FolderSnapshot after = snapshot({.max_entries = 10});
  EXPECT_EQ(after.entries().size(), 10U);
  const FolderChanges changes = diff(before, after);
  EXPECT_TRUE(changes.truncated);
  EXPECT_EQ(changes.truncated_reason, "after the run: more than 10 entries");
  EXPECT_TRUE(changes.deleted.empty());  // what was not reached is not gone
}

TEST_F(Collect, stays_within_the_budget_of_path_bytes) {
  for (int i = 0; i < 10; ++i) write(mnt(std::string(100, static_cast<char>('a' + i))), "");
  EXPECT_FALSE(snapshot({.max_path_bytes = 1000}).truncated());
  const FolderSnapshot after = snapshot({.max_path_bytes = 999});
  EXPECT_EQ(after.entries().size(), 9U);
  EXPECT_TRUE(after.truncated());
}

TEST_F(Collect, does_not_call_old_files_new_when_the_first_look_was_partial) {
  for (int i = 0; i < 10; ++i) write(mnt(std::to_string(i)), "");
  const FolderSnapshot before = snapshot_before({.max_entries = 3});
  write(mnt("7"), "changed");
  const FolderChanges changes = changes_since(before);
  EXPECT_TRUE(changes.truncated);
  EXPECT_TRUE(changes.created.empty());
  EXPECT_EQ(changes.modified, (Paths{"7"}));
}

TEST_F(Collect, does_not_call_files_deleted_that_it_may_not_see) {
  if (::geteuid() == 0) {
    ASSERT_EQ(::chmod(base_.c_str(), 0755), 0);
  }
  for (const char* name : {"closed", "listable", "open"}) {
    fs::create_directory(mnt(name));
    write(mnt(std::string(name) + "/file"), "");
  }
  const FolderSnapshot before = snapshot_before();
  fs::remove(mnt("open/file"));
  ASSERT_EQ(::chmod(mnt("closed").c_str(), 0), 0);
  ASSERT_EQ(::chmod(mnt("listable").c_str(), 0444), 0);
  const bool was_root = ::geteuid() == 0;
  if (was_root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const FolderChanges changes = changes_since(before);
  if (was_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  for (const char* name : {"closed", "listable"}) ASSERT_EQ(::chmod(mnt(name).c_str(), 0755), 0);
  EXPECT_EQ(changes.deleted, (Paths{"open/file"}));
  EXPECT_EQ(skip_reason_of(changes, "closed"), "cannot be read: permission denied");
  EXPECT_EQ(skip_reason_of(changes, "listable/file"), "cannot be read: permission denied");
  EXPECT_FALSE(changes.truncated);
}

TEST_F(Collect, does_not_enter_another_mount) {
  fs::create_directory(mnt("mount"));
  fs::create_directory(mnt("plain"));
  write(mnt("plain/file"), "");
  const std::string said = in_child([&]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "skip";
    // A bind of the same file system: the device number does not tell it apart, only the mount does.
    if (::mount((base_ / "outside").c_str(), mnt("mount").c_str(), nullptr, MS_BIND, nullptr) != 0) return "skip";
    if (!fs::exists(mnt("mount/canary"))) return "the control failed: nothing is mounted";
    const Fd folder(::open(mnt("").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    const auto taken = take_snapshot(folder.get(), {});
    if (!taken) return taken.error().what;
    if (taken->find("plain/file") == nullptr) return "the control failed: a plain directory was not read";
    if (taken->find("mount/canary") != nullptr) return "the mount was entered";
    return taken->find("mount")->unread == Unread::other_mount ? "" : "the mount was not noted";
  });
  if (said == "skip") GTEST_SKIP() << "mounting needs CAP_SYS_ADMIN";
  EXPECT_EQ(said, "");
}

// The kernel of the host knows openat2; a filter takes it away as an old container runtime would.
TEST_F(Collect, does_the_same_without_openat2) {
  make_chain(60, std::string(200, 'n'), "bottom");
  fs::create_directory_symlink(base_ / "outside", mnt("link"));
  write(mnt("file"), "");
  const FolderSnapshot expected = snapshot();
  for (const int code : {ENOSYS, EPERM}) {
    EXPECT_EQ(in_child([&]() -> std::string {
                sock_filter program[] = {
                    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(code)),
                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
                };
                const sock_fprog filter{4, program};
                ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) return "no seccomp";
                if (::syscall(SYS_openat2, -1, "", nullptr, 0) != -1 || errno != code) return "openat2 is still there";
                const auto taken = take_snapshot(folder_.get(), {});
                if (!taken) return taken.error().what;
                if (taken->entries().size() != expected.entries().size()) return "other entries";
                const FolderChanges changes = diff(expected, *taken);
                return changes.created.empty() && changes.modified.empty() && changes.deleted.empty() &&
                               changes.skipped.empty()
                           ? ""
                           : "differs";
              }),
              "")
        << std::strerror(code);
  }
}

TEST_F(Collect, keeps_names_as_bytes_in_bytewise_order) {
  const FolderSnapshot before = snapshot_before();
  const Paths names = {"\x01", "a\nb", "a b", "\\", "z", "\xc3\xa9", "\xff\xfe"};
  for (const std::string& name : names) write(mnt(name), "");
  Paths sorted = names;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(changes_since(before).created, sorted);
}

TEST_F(Collect, fails_on_what_is_not_a_folder) {
  const Fd file(::open((base_ / "outside/canary").c_str(), O_PATH | O_CLOEXEC));
  const auto taken = take_snapshot(file.get(), {});
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, ENOTDIR);
  EXPECT_FALSE(take_snapshot(-1, {}));
}

}  // namespace
}  // namespace pctx
