#include "box/lookout.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace pctx {
namespace {

Fd file_with(const std::string& text) {
  Fd fd{::memfd_create("lines", MFD_CLOEXEC)};
  EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return fd;
}

TEST(Lookout, counts_lines_from_the_start_each_time) {
  const Fd three = file_with("1: POSIX\n2: FLOCK\n2: -> FLOCK\n");
  EXPECT_EQ(count_lines(three.get(), 100), 3U);
  EXPECT_EQ(count_lines(three.get(), 100), 3U);
  EXPECT_EQ(count_lines(file_with("").get(), 100), 0U);
  EXPECT_EQ(count_lines(-1, 100), 0U);
}

TEST(Lookout, reads_no_further_than_it_has_to) {
  const Fd many = file_with(std::string(1 << 20, '\n'));
  const std::uint64_t counted = count_lines(many.get(), 10);
  EXPECT_GT(counted, 10U);
  EXPECT_LT(counted, 1U << 16);
}

TEST(Lookout, whose_process_is_gone_says_nothing_and_is_started_again) {
  Lookout lookout;
  const Fd proc{::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  const auto watched = lookout.watch({proc.get(), -1, 1 << 20, false});
  ASSERT_TRUE(watched);
  lookout.release();
  pollfd end{watched->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&end, 1, 10'000), 1);
  Verdict verdict;
  EXPECT_FALSE(read_excess(watched->get(), verdict));
  EXPECT_TRUE(lookout.watch({proc.get(), -1, 1 << 20, false}));
}

}  // namespace
}  // namespace pctx
