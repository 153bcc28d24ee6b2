#include "box/lookout.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

namespace pctx {
namespace {

Fd file_with(const std::string& text) {
  Fd fd{::memfd_create("lines", MFD_CLOEXEC)};
  EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return fd;
}

TEST(Lookout, counts_locks_from_the_start_each_time) {
  const Fd three = file_with("1: POSIX\n2: FLOCK\n2: -> FLOCK\n");
  EXPECT_EQ(count_locks(three.get(), 100), 3U);
  EXPECT_EQ(count_locks(three.get(), 100), 3U);
  EXPECT_EQ(count_locks(file_with("").get(), 100), 0U);
  EXPECT_EQ(count_locks(-1, 100), 0U);
}

TEST(Lookout, does_not_count_what_every_namespace_sees) {
  const Fd table = file_with(
      "1: OFDLCK ADVISORY  WRITE -1 08:01:42 0 EOF\n"
      "2: POSIX  ADVISORY  WRITE 17 08:01:42 0 7\n"
      "2: -> POSIX  ADVISORY  WRITE 18 08:01:42 0 7\n"
      "3: POSIX  ADVISORY  READ  -512 08:01:42 0 EOF\n"
      "4: LEASE  ACTIVE    READ  17 08:01:42 0 EOF\n");
  EXPECT_EQ(count_locks(table.get(), 100), 3U);
  std::string many;
  for (int i = 0; i < 5'000; ++i) many += "1: OFDLCK ADVISORY  WRITE -1 08:01:42 0 EOF\n";
  EXPECT_EQ(count_locks(file_with(many).get(), 100), 0U);  // also where a read ends within a line
}

TEST(Lookout, reads_no_further_than_it_has_to) {
  const Fd many = file_with(std::string(1 << 20, '\n'));
  const std::uint64_t counted = count_locks(many.get(), 10);
  EXPECT_GT(counted, 10U);
  EXPECT_LT(counted, 1U << 16);
}

TEST(Lookout, whose_process_is_gone_says_nothing_and_is_started_again) {
  Lookout lookout;
  const Fd proc{::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  const Fd locks{::open("/proc/locks", O_RDONLY | O_CLOEXEC)};
  const auto watched = lookout.watch(Plan{}, {proc.get(), locks.get(), -1});
  ASSERT_TRUE(watched);
  lookout.release();
  pollfd end{watched->heard.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&end, 1, 10'000), 1);
  Verdict verdict;
  TreeMeter meter;
  EXPECT_EQ(hear(watched->heard.get(), meter, verdict), Heard::nothing_more);
  EXPECT_TRUE(lookout.watch(Plan{}, {proc.get(), locks.get(), -1}));
}

TEST(Lookout, that_cannot_be_had_says_what_the_kernel_answered) {
  Lookout lookout;
  const auto unsent = lookout.watch(Plan{}, {-1, -1, -1});
  ASSERT_FALSE(unsent);
  EXPECT_EQ(unsent.error().code, EBADF) << unsent.error().what;
  const Fd proc{::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{64, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<Fd> taken;
  while (taken.empty() || taken.back()) taken.emplace_back(::open("/proc", O_PATH | O_CLOEXEC));
  taken.resize(taken.size() - 3);  // room for a box, not for the process
  const auto unstarted = lookout.watch(Plan{}, {proc.get(), proc.get(), -1});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(unstarted);
  EXPECT_EQ(unstarted.error().code, EMFILE) << unstarted.error().what;
  EXPECT_TRUE(lookout.watch(Plan{}, {proc.get(), proc.get(), -1}));
}

}  // namespace
}  // namespace pctx
