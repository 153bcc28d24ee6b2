#include "net/door.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include <gtest/gtest.h>

namespace pctx::net {
namespace {

class DoorTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_), nullptr);
    void* memory = ::mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    welcomed_ = static_cast<pid_t*>(memory);
  }
  void TearDown() override {
    ::munmap(welcomed_, sizeof(pid_t));
    (void)::rmdir(folder_);
  }
  std::string path() const { return std::string{folder_} + "/door"; }
  // Comes in as a process of its own, since one has one door for good; what it found when it was told to go on.
  template <typename Check>
  pid_t come_in(const Door& door, Check check) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(door.fd());  // else it would be on both sides
      if (!enter_door(path(), false)) ::_exit(2);
      await_welcome();
      ::_exit(check() ? 0 : 1);
    }
    return pid;
  }
  static int ended(pid_t pid) {
    int status = 0;
    return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  char folder_[32] = "/tmp/pctx-door.XXXXXX";
  pid_t* welcomed_ = nullptr;
};

TEST_F(DoorTest, welcomes_whoever_comes_in_before_it_goes_on) {
  auto door = Door::open(path(), ::geteuid(), ::getegid());
  ASSERT_TRUE(door);
  const pid_t pid = come_in(*door, [&] { return *welcomed_ == ::getpid(); });
  ASSERT_TRUE(Door::serve_behind(*std::move(door), [this](pid_t came) { *welcomed_ = came; }));
  EXPECT_EQ(ended(pid), 0);
  EXPECT_EQ(*welcomed_, pid);
}

TEST_F(DoorTest, lets_one_go_on_whose_other_side_is_gone) {
  auto door = Door::open(path(), ::geteuid(), ::getegid());
  ASSERT_TRUE(door);
  // Readable: it has come in, and waits.
  const pid_t pid = come_in(*door, [&] { return *welcomed_ == 0; });
  pollfd came{door->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&came, 1, 60'000), 1);
  { const Door gone = *std::move(door); }
  EXPECT_EQ(ended(pid), 0);
}

}  // namespace
}  // namespace pctx::net
