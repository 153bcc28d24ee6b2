#include "sys/loop.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "sys/files.h"

namespace pctx::sys {
namespace {

TEST(Loop, calls_who_has_something_to_read) {
  auto loop = Loop::make();
  ASSERT_TRUE(loop);
  auto pipe = make_pipe();
  ASSERT_TRUE(pipe);
  loop->watch(pipe->read_end.get(), EPOLLIN, [&](std::uint32_t) { loop->stop(); });
  loop->after(std::chrono::milliseconds{1}, [&] { EXPECT_EQ(::write(pipe->write_end.get(), "x", 1), 1); });
  EXPECT_TRUE(loop->run());
}

// epoll takes no regular file, as it takes nothing when a user has no watches left.
TEST(Loop, asks_for_what_the_kernel_does_not_watch) {
  auto loop = Loop::make();
  ASSERT_TRUE(loop);
  std::string path = testing::TempDir() + "loop-XXXXXX";
  const Fd file{::mkstemp(path.data())};
  ASSERT_TRUE(file);
  ::unlink(path.c_str());
  int calls = 0;
  loop->watch(file.get(), EPOLLIN, [&](std::uint32_t events) {
    EXPECT_EQ(events, EPOLLIN);
    if (++calls == 3) loop->forget(file.get());
  });
  loop->after(std::chrono::milliseconds{200}, [&] { loop->stop(); });
  EXPECT_TRUE(loop->run());
  EXPECT_EQ(calls, 3) << "and not after it was forgotten";
}

}  // namespace
}  // namespace pctx::sys
