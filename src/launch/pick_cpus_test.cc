#include "launch/pick_cpus.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

namespace pctx {
namespace {

cpu_set_t set_of(const std::set<unsigned>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const unsigned cpu : cpus) CPU_SET(cpu, &set);
  return set;
}

std::set<unsigned> pick(const std::set<unsigned>& allowed, unsigned count, unsigned seed) {
  const cpu_set_t chosen = pick_cpus(set_of(allowed), count, seed);
  std::set<unsigned> cpus;
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &chosen)) cpus.insert(cpu);
  return cpus;
}

TEST(PickCpus, as_many_as_are_asked_for_of_those_that_are_allowed) {
  const std::set<unsigned> allowed{1, 5, 6, 64, 1023};
  for (unsigned seed = 0; seed < 2000; ++seed)
    for (unsigned count = 1; count <= allowed.size(); ++count) {
      const std::set<unsigned> chosen = pick(allowed, count, seed);
      ASSERT_EQ(chosen.size(), count) << seed;
      for (const unsigned cpu : chosen) ASSERT_TRUE(allowed.contains(cpu)) << cpu;
    }
}

TEST(PickCpus, all_if_there_are_fewer) {
  EXPECT_EQ(pick({0, 3}, 7, 12345), (std::set<unsigned>{0, 3}));
  EXPECT_EQ(pick({}, 1, 12345), std::set<unsigned>{});
}

// Whatever the number of pids that one box takes: each CPU has its share, within a third.
TEST(PickCpus, boxes_are_spread_evenly) {
  for (const unsigned cpus : {2U, 3U, 8U}) {
    std::set<unsigned> allowed;
    for (unsigned cpu = 0; cpu < cpus; ++cpu) allowed.insert(cpu);
    for (unsigned pids = 1; pids <= 16; ++pids) {
      std::map<unsigned, unsigned> boxes;
      constexpr unsigned kBoxes = 2400;
      for (unsigned box = 0; box < kBoxes; ++box) ++boxes[*pick(allowed, 1, 5000 + box * pids).begin()];
      for (const unsigned cpu : allowed) {
        EXPECT_GT(boxes[cpu] * 3, kBoxes / cpus * 2) << cpu << " of " << cpus << ", " << pids << " pids a box";
        EXPECT_LT(boxes[cpu] * 3, kBoxes / cpus * 4) << cpu << " of " << cpus << ", " << pids << " pids a box";
      }
    }
  }
}

}  // namespace
}  // namespace pctx
