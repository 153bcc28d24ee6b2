#include "pool/spec.h"

#include <gtest/gtest.h>

namespace pctx {
namespace {

TEST(PoolSpec, a_zygote_has_room_for_the_workers_that_are_being_made) {
  Plan plan;
  plan.policy.limits.pids = 2;
  plan.policy.limits.memory = 64 << 20;
  plan.cgroup_writes = {{"memory", "memory.max", "67108864"}, {"pids", "pids.max", "3"}, {"cpu", "cpu.max", "1 2"}};
  const Plan own = limits_of_zygote(plan);
  ASSERT_EQ(own.cgroup_writes.size(), 3U);
  EXPECT_EQ(own.cgroup_writes[0].value, std::to_string(std::uint64_t{4} << 30));
  EXPECT_EQ(own.cgroup_writes[1].value, "259");
  EXPECT_EQ(own.cgroup_writes[2].value, "1 2");
}

}  // namespace
}  // namespace pctx
