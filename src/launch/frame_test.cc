#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include <gtest/gtest.h>

#include "base/fd.h"
#include "launch/child_plan.h"

namespace pctx {
namespace {

constexpr StatusFrame kFrame{Message::cgroups, Step::handshake, 0, 0, 0};

// How many descriptors arrive of four where there is room for `room`; -1 with errno if there is no message.
std::ptrdiff_t arrive(unsigned room, std::size_t& count, std::array<int, kMaxFrameFds>& fds) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Fd ours{ends[0]}, theirs{ends[1]};
  const std::array<int, 4> sent{ours.get(), ours.get(), ours.get(), ours.get()};
  EXPECT_TRUE(send_frame(ours.get(), kFrame, sent.data(), sent.size()));
  const Fd next{::fcntl(theirs.get(), F_DUPFD_CLOEXEC, 0)};  // the lowest that is free, from which on none may be
  rlimit before{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{static_cast<rlim_t>(next.get()) + 1 + room, before.rlim_max};
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  StatusFrame frame{};
  const std::ptrdiff_t got = receive_frame(theirs.get(), frame, fds.data(), count, 0);
  const int code = errno;
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (std::size_t i = 0; i < count; ++i) ::close(fds[i]);
  errno = code;
  return got;
}

TEST(Frame, of_which_a_part_arrives_is_none) {
  std::size_t count = 0;
  std::array<int, kMaxFrameFds> fds{};
  EXPECT_EQ(arrive(64, count, fds), static_cast<std::ptrdiff_t>(sizeof kFrame));
  EXPECT_EQ(count, 4U);
  const Fd first{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  for (const unsigned room : {0U, 2U, 3U}) {
    EXPECT_EQ(arrive(room, count, fds), -1) << room;
    EXPECT_EQ(errno, EMFILE);
    EXPECT_EQ(count, 0U);
  }
  const Fd last{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  EXPECT_EQ(last.get(), first.get() + 1) << "what had arrived is closed";
}

}  // namespace
}  // namespace pctx
