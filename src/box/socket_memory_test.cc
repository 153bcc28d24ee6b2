#include "box/socket_memory.h"

#include <gtest/gtest.h>

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

TEST(SocketMemory, is_none_without_a_namespace_to_look_into) { EXPECT_EQ(SocketMeter{}.measure(-1, "1"), 0U); }

}  // namespace
}  // namespace pctx
