// How boxes share the one relay: its descriptors, and its time.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "net/descriptors.h"
#include "net/turns.h"

namespace pctx::net {
namespace {

std::size_t take_all(Descriptors& descriptors, Descriptors::Share& share) {
  std::size_t taken = 0;
  while (descriptors.try_take(share, 2)) taken += 2;
  return taken;
}

TEST(Descriptors, no_box_takes_what_others_need) {
  Descriptors descriptors(1024);
  std::vector<Descriptors::Share> greedy(4);
  for (Descriptors::Share& each : greedy) {
    const std::size_t before = descriptors.free();
    EXPECT_GE(take_all(descriptors, each), 60U);
    EXPECT_GE(descriptors.free(), before > 128 ? before / 2 - 2 : 0) << "half of what was there is still there";
  }
  EXPECT_TRUE(descriptors.take_ends(7)) << "and one that comes last has its ends";
}

TEST(Descriptors, a_single_box_gets_half) {
  Descriptors descriptors(65536);
  Descriptors::Share only;
  EXPECT_GT(take_all(descriptors, only), 32000U);
  descriptors.give_back(only, only.held);
  EXPECT_EQ(descriptors.free(), 65536 - Descriptors::kReserve);
}

TEST(Descriptors, room_is_made_for_those_who_have_little_and_for_nobody_else) {
  Descriptors descriptors(200);
  Descriptors::Share greedy[3], poor;
  for (int box = 0; box < 4; ++box) ASSERT_TRUE(descriptors.take_ends(8));
  for (Descriptors::Share& each : greedy) (void)take_all(descriptors, each);
  while (descriptors.free() > 0) {  // as ends of boxes might
    Descriptors::Share other;
    ASSERT_TRUE(descriptors.try_take(other, 1));
  }
  std::size_t asked = 0;
  descriptors.make_room = [&](std::size_t count) {
    asked += count;
    descriptors.give_back(greedy[0], count);
  };
  EXPECT_FALSE(descriptors.try_take(greedy[0], 2));
  EXPECT_EQ(asked, 0U);
  EXPECT_TRUE(descriptors.try_take(poor, 2));
  EXPECT_EQ(asked, 2U);
}

TEST(Descriptors, many_boxes_have_little_each_but_have_it) {
  Descriptors descriptors(1024);
  std::vector<Descriptors::Share> boxes(64);  // as many as a Broker has Workers
  descriptors.make_room = [&](std::size_t count) {
    for (; count > 0; --count)
      descriptors.give_back(*std::max_element(boxes.begin(), boxes.end(),
                                              [](const auto& one, const auto& other) { return one.held < other.held; }),
                            1);
  };
  for (Descriptors::Share& box : boxes) {
    ASSERT_TRUE(descriptors.take_ends(7)) << "each finds room, although all before it take what they can";
    ASSERT_TRUE(descriptors.try_take(box, 8));
    (void)take_all(descriptors, box);
  }
  for (const Descriptors::Share& box : boxes) EXPECT_GE(box.held, 7U);
}

TEST(Turns, a_box_with_much_to_move_waits_for_the_next_round) {
  sys::Loop loop = *sys::Loop::make();
  Turns turns(loop);
  Turns::Share bulk, other;
  while (turns.left(bulk) > 0) turns.spend(bulk, 1 << 18);
  EXPECT_EQ(turns.left(other), Turns::kRound) << "nobody else is held up";
  turns.spend(other, 1);
  EXPECT_EQ(turns.left(other), Turns::kRound - Turns::kLeast) << "little pieces cost more than their bytes";
  std::string order;
  // Two connections of one box: each uses up the round, so they take turns; the other box has one every time.
  std::function<void()> first = [&] {
    order += 'a';
    turns.spend(bulk, Turns::kRound);
    (void)turns.wait(bulk, first);
  };
  std::function<void()> second = [&] {
    order += 'b';
    turns.spend(bulk, Turns::kRound);
    (void)turns.wait(bulk, second);
  };
  std::function<void()> third = [&] {
    order += '.';
    (void)turns.wait(other, third);
  };
  (void)turns.wait(bulk, first);
  (void)turns.wait(bulk, second);
  (void)turns.wait(other, third);
  for (int round = 0; round < 6; ++round) turns.next();
  EXPECT_EQ(order, "a.b.a.b.a.b.") << order;
}

TEST(Turns, one_that_is_called_may_send_others_away) {
  sys::Loop loop = *sys::Loop::make();
  Turns turns(loop);
  Turns::Share share;
  bool called = false;
  Turns::Ticket next = 0;
  (void)turns.wait(share, [&] { turns.cancel(next); });
  next = turns.wait(share, [&] { called = true; });
  turns.next();
  turns.next();
  EXPECT_FALSE(called);
  EXPECT_EQ(next, 0U);
}

// The loop itself calls: one byte moves, and a megabyte does not hold it up.
TEST(Turns, go_on_by_themselves) {
  sys::Loop loop = *sys::Loop::make();
  Turns turns(loop);
  Turns::Share share;
  int rounds = 0;
  std::function<void()> more = [&] {
    turns.spend(share, Turns::kRound);
    if (++rounds == 10) return loop.stop();
    (void)turns.wait(share, more);
  };
  (void)turns.wait(share, more);
  ASSERT_TRUE(loop.run());
  EXPECT_EQ(rounds, 10);
}

}  // namespace
}  // namespace pctx::net
