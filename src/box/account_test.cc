#include "box/account.h"

#include <gtest/gtest.h>

namespace pctx {
namespace {

Usage settled(const Account& account) {
  Usage usage;
  settle(account, usage);
  return usage;
}

TEST(Account, NobodyCounted) {
  EXPECT_EQ(settled({}).cpu, std::nullopt);
  EXPECT_EQ(settled({}).peak_memory, std::nullopt);
}

TEST(Account, TheCgroupKnowsBest) {
  const Account account{.cgroup = {.peak_memory = 5, .cpu_microseconds = 7'900},
                        .has_cgroup = true,
                        .waited_cpu = Millis{1},
                        .largest_process = 99,
                        .watched = TreeUsage{.memory = 98, .cpu = Millis{97}}};
  EXPECT_EQ(settled(account).cpu, Millis{7});
  EXPECT_EQ(settled(account).peak_memory, 5U);
}

TEST(Account, ACgroupThatCountsNoTimeLeavesItToThoseWhoWait) {
  Account account{.cgroup = {.peak_memory = 5}, .has_cgroup = true, .waited_cpu = Millis{3}, .largest_process = 99};
  EXPECT_EQ(settled(account).cpu, Millis{3});
  EXPECT_EQ(settled(account).peak_memory, 5U);
  account.waited_cpu.reset();
  EXPECT_EQ(settled(account).cpu, std::nullopt);
}

TEST(Account, OneProcessIsNoBox) {
  const Account account{.has_cgroup = true, .waited_cpu = Millis{3}, .largest_process = 99};
  EXPECT_EQ(settled(account).peak_memory, std::nullopt);
}

TEST(Account, WithoutCgroupsTheHigherFigureIsTheTruerOne) {
  Account account{.waited_cpu = Millis{3}, .largest_process = 50, .watched = TreeUsage{.memory = 20, .cpu = Millis{9}}};
  EXPECT_EQ(settled(account).cpu, Millis{9});
  EXPECT_EQ(settled(account).peak_memory, 50U);
  account.watched = TreeUsage{.memory = 80, .cpu = Millis{1}};
  EXPECT_EQ(settled(account).cpu, Millis{3});
  EXPECT_EQ(settled(account).peak_memory, 80U);
  account.waited_cpu.reset();
  account.largest_process.reset();
  EXPECT_EQ(settled(account).cpu, Millis{1});
  EXPECT_EQ(settled(account).peak_memory, 80U);
}

}  // namespace
}  // namespace pctx
