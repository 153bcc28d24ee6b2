#include "box/socket_memory.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace pctx {
namespace {

constexpr std::string_view kTable =
    "sockets: used 12\n"
    "TCP: inuse 5 orphan 1 tw 7 alloc 6 mem 3\n"
    "UDP: inuse 2 mem 4\n"
    "UDPLITE: inuse 9\n";

TEST(SocketMemory, reads_the_kernels_counts_of_sockets) {
  EXPECT_EQ(sockstat_count(kTable, "sockets", "used"), 12U);
  EXPECT_EQ(sockstat_count(kTable, "TCP", "inuse"), 5U);
  EXPECT_EQ(sockstat_count(kTable, "UDP", "inuse"), 2U);
  EXPECT_EQ(sockstat_count(kTable, "UDP", "mem"), 4U);
}

TEST(SocketMemory, counts_nothing_where_there_is_no_such_line) {
  EXPECT_EQ(sockstat_count(kTable, "TCP6", "inuse"), 0U);
  EXPECT_EQ(sockstat_count(kTable, "TCP", "used"), 0U);
  EXPECT_EQ(sockstat_count("TCP: inuse", "TCP", "inuse"), 0U);
  EXPECT_EQ(sockstat_count("", "TCP", "inuse"), 0U);
}

TEST(SocketMemory, tells_the_kinds_of_sockets_apart) {
  const SocketCounts counts = socket_counts(kTable, "TCP6: inuse 1\nUDP6: inuse 3\n");
  EXPECT_EQ(counts.of, (std::array<std::uint64_t, 5>{1, 5, 2, 1, 3}));  // what is left of 12 is local
  EXPECT_EQ(counts.closed, 7U);
  EXPECT_EQ(socket_counts("sockets: used 2\nTCP: inuse 5\n", "").of[0], 0U);  // counted at different times
}

TEST(SocketMemory, counts_a_connection_that_nobody_has_accepted) {
  EXPECT_EQ(SocketCounts{}.memory(), 0U);
  EXPECT_GE(socket_counts("sockets: used 20000\nTCP: inuse 20000 tw 20000\n", "").memory(), 80'000'000U);
}

TEST(SocketMemory, counts_what_closed_sockets_have_sent) {
  const std::vector<UnixQueue> queues{{7, 100}, {8, 100}, {0, 1000}, {0, 0}};
  EXPECT_EQ(left_by_closed(queues, {9, 8, 7}, 200_KiB), 200_KiB) << "no more than it may have sent";
  EXPECT_EQ(left_by_closed(queues, {8}, 200_KiB), 300_KiB);
  EXPECT_EQ(left_by_closed({{7, 0, true}}, {8}, 200_KiB), 200_KiB) << "messages without a byte";
  EXPECT_EQ(left_by_closed({{8, 0, true}}, {8}, 200_KiB), 0U);
}

TEST(SocketMemory, counts_what_is_in_no_list_but_for_a_few) {
  EXPECT_EQ(of_unlisted(100, 100, 1_MiB), 0U);
  EXPECT_EQ(of_unlisted(10, 100, 1_MiB), 0U);
  EXPECT_EQ(of_unlisted(132, 100, 1_MiB), 0U) << "still to be used";
  EXPECT_EQ(of_unlisted(142, 100, 1_MiB), 10_MiB);
}

TEST(SocketMemory, is_none_without_a_namespace_to_look_into) { EXPECT_EQ(SocketMeter{}.measure(-1, 1), 0U); }

}  // namespace
}  // namespace pctx
