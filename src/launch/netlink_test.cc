#include "launch/netlink.h"

#include <gtest/gtest.h>

#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include <cstring>

namespace pctx {
namespace {

std::vector<nlmsghdr> headers(const NetlinkMessages& messages) {
  std::vector<nlmsghdr> found;
  for (std::size_t at = 0; at < messages.bytes.size();) {
    nlmsghdr header;
    std::memcpy(&header, messages.bytes.data() + at, sizeof header);
    found.push_back(header);
    at += NLMSG_ALIGN(header.nlmsg_len);
  }
  return found;
}

TEST(Netlink, only_the_last_message_asks_for_an_answer) {
  NetworkPlan network;
  network.own4 = {{false, {198, 18, 0, 2}}, 32};
  network.local = {{{false, {198, 18}}, 15}, {{false, {192, 0, 2, 7}}, 32}, {{true, {0xfd}}, 64}};
  const NetlinkMessages messages = local_routes(network, false);
  const auto found = headers(messages);
  ASSERT_EQ(found.size(), 4U) << "loopback, address, two routes of this family";
  EXPECT_EQ(found[0].nlmsg_type, RTM_NEWLINK);
  EXPECT_EQ(found[1].nlmsg_type, RTM_NEWADDR);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ((found[i].nlmsg_flags & NLM_F_ACK) != 0, i + 1 == found.size());
    EXPECT_EQ(found[i].nlmsg_seq, i + 1);
  }
  EXPECT_EQ(found.back().nlmsg_seq, messages.last);
}

TEST(Netlink, either_everything_is_local_or_it_is_watched) {
  NetworkPlan network;
  EXPECT_EQ(headers(local_routes(network, false)).size(), 2U);
  EXPECT_EQ(headers(watched_route(network)).size(), 1U);
  EXPECT_EQ(headers(local_routes(network, true)).size(), 3U);
  network.everything_is_local = true;
  EXPECT_EQ(headers(local_routes(network, false)).size(), 3U);
  EXPECT_EQ(watched_route(network).last, 0U);
}

}  // namespace
}  // namespace pctx
