#include "box/network.h"

#include <gtest/gtest.h>

#include <fcntl.h>

namespace pctx {
namespace {

Plan plan_with_ports(std::vector<std::uint16_t> ports) {
  Plan plan;
  plan.network.emplace().ports = std::move(ports);
  return plan;
}

FrameFds some(std::size_t count) {
  FrameFds fds;
  for (std::size_t i = 0; i < count; ++i) fds[i] = Fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  return fds;
}

StatusFrame frame(std::uint8_t has, std::uint16_t first, std::int32_t total) {
  return {Message::network, Step::network, has, first, total};
}

TEST(EndsReader, puts_several_frames_together) {
  const Plan plan = plan_with_ports({80, 443, 5432, 8080});
  EndsReader reader;
  FrameFds first = some(8), second = some(1);
  EXPECT_FALSE(*reader.take(plan, frame(kHasPacket | kHasRaw4 | kHasRaw6, 0, 9), first));
  EXPECT_TRUE(*reader.take(plan, frame(kHasPacket | kHasRaw4 | kHasRaw6, 8, 9), second));
  EXPECT_TRUE(reader.ends.dns_udp && reader.ends.dns_tcp && attempts_are_seen(reader.ends));
  ASSERT_EQ(reader.ends.listeners.size(), 4U);
  EXPECT_EQ(reader.ends.listeners[3].first, 8080);
}

TEST(EndsReader, does_without_watchers) {
  const Plan plan = plan_with_ports({443});
  EndsReader reader;
  FrameFds fds = some(3);
  EXPECT_TRUE(*reader.take(plan, frame(0, 0, 3), fds));
  EXPECT_FALSE(attempts_are_seen(reader.ends));
  EXPECT_EQ(reader.ends.listeners.size(), 1U);
}

TEST(EndsReader, refuses_what_was_not_asked_for) {
  EndsReader reader;
  FrameFds fds = some(3);
  EXPECT_FALSE(reader.take(plan_with_ports({80, 443}), frame(0, 0, 3), fds)) << "a listener is missing";
  EXPECT_FALSE(reader.take(plan_with_ports({443}), frame(0, 2, 3), fds)) << "out of order";
  EXPECT_FALSE(reader.take({}, frame(0, 0, 2), fds)) << "no allow-list at all";
}

}  // namespace
}  // namespace pctx
