#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <utility>

#include "plan/planned.h"

namespace pctx {
namespace {

std::string bound_by(const Plan& plan, std::string limit) {
  std::replace(limit.begin(), limit.end(), '-', '_');
  for (const LimitBinding& each : plan.bindings)
    if (each.limit == limit) return each.by;
  return "";
}

TEST(Limits, without_cgroups_the_next_best_binds_and_is_named) {
  const auto plan = compile({}, user_host(), {});
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->watchdog.memory);
  EXPECT_EQ(plan->pin_cpus, 1U);
  EXPECT_TRUE(plan->cgroup_writes.empty());
  ASSERT_FALSE(plan->notices.empty());
  for (const LimitBinding& limit : plan->bindings) EXPECT_NE(limit.by, "cgroup v2") << limit.limit;
}

TEST(Limits, what_only_cgroups_can_bind_is_refused_without_them) {
  for (const auto& [change, option] : {std::pair{+[](Policy& p) { p.limits.cpus = 500; }, "--cpus"},
                                       {+[](Policy& p) { p.limits.io_read = 1_MiB; }, "--io-read"}}) {
    Policy policy;
    change(policy);
    const auto refused = compile(policy, user_host(), {});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().what.find(option), std::string::npos);
    EXPECT_TRUE(compile(policy, root_host(), {}));
    policy.allow_degraded.set(index(Layer::cgroups));
    const auto degraded = compile(policy, user_host(), {});
    ASSERT_TRUE(degraded);
    EXPECT_TRUE(bound_by(*degraded, std::string{option}.substr(2)).starts_with("not bound")) << option;
  }
}

TEST(Limits, a_guest_with_the_callers_uid_has_few_descriptors) {
  Policy policy;
  policy.limits.files = 513;
  EXPECT_TRUE(compile(policy, root_host(), {})) << "a uid of its own";
  const auto refused = compile(policy, user_host(), {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("--files 513"), std::string::npos);
  policy.allow_degraded.set(index(Layer::subordinate_ids));
  EXPECT_TRUE(compile(policy, user_host(), {}));
  policy = {};
  policy.limits.files = 512;
  EXPECT_TRUE(compile(policy, user_host(), {}));
}

TEST(Limits, no_guest_is_promised_more_descriptors_than_its_caller_may_have) {
  HostFeatures host = root_host();
  host.files = 100;
  const auto plan = compile({}, host, {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(std::ranges::find(plan->bindings, "files", &LimitBinding::limit)->value, "100");
  EXPECT_EQ(std::ranges::find(plan->rlimits, RLIMIT_NOFILE, &ResourceLimit::resource)->value, 100U);
  Policy policy;
  policy.limits.files = 101;
  const auto refused = compile(policy, host, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("more than 100"), std::string::npos);
  policy.limits.files = 100;
  EXPECT_TRUE(compile(policy, host, {}));
}

TEST(Limits, a_watchdog_needs_the_proc_of_the_box) {
  CompileInputs inputs;
  inputs.missing.set(index(Layer::proc));
  Policy policy;
  policy.allow_degraded.set(index(Layer::proc));
  const auto refused = compile(policy, user_host(), inputs);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("limits are bound by a watchdog"), std::string::npos);
  EXPECT_TRUE(compile(policy, root_host(), inputs)) << "cgroups bind them";
  policy.limits.cpu_time = Millis{1000};
  EXPECT_FALSE(compile(policy, root_host(), inputs));
}

TEST(Limits, what_systemd_did_not_delegate_is_not_promised) {
  HostFeatures host = root_host();
  host.cgroup.cpu_controller = host.cgroup.io_controller = false;
  const auto plan = compile({}, host, {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->pin_cpus, 1U);
  for (const CgroupWrite& write : plan->cgroup_writes) EXPECT_NE(write.file, "cpu.max");
  Policy policy;
  policy.limits.io_write = 1_MiB;
  EXPECT_FALSE(compile(policy, host, {}));
  policy.allow_degraded.set(index(Layer::cgroups));
  const auto degraded = compile(policy, host, {});
  ASSERT_TRUE(degraded);
  EXPECT_EQ(bound_by(*degraded, "io_write"), "not bound");
  ASSERT_EQ(degraded->notices.size(), 1U);
  EXPECT_EQ(degraded->notices[0], "limits that --allow-degraded lets go: io_write 1 MiB/s (not bound)");
  EXPECT_TRUE(plan->notices.empty());
}

TEST(Limits, v1_cannot_throttle_buffered_writes_and_says_so) {
  HostFeatures host = root_host();
  host.cgroup = {.version = CgroupVersion::v1, .memory = "/m", .pids = "/p", .cpu = "/c", .memsw = true};
  Policy policy;
  ASSERT_TRUE(compile(policy, host, {}));
  policy.limits.io_write = 1_MiB;
  const auto refused = compile(policy, host, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("v1 cannot throttle"), std::string::npos);
}

// On v1 our init is in the cgroups of a Worker, and in none of a run's.
TEST(Limits, processes_are_those_of_the_guest) {
  HostFeatures v1 = root_host();
  v1.cgroup = {.version = CgroupVersion::v1, .memory = "/m", .pids = "/p", .cpu = "/c", .memsw = true};
  const auto most = [](const HostFeatures& host, const CompileInputs& inputs) {
    Policy policy;
    policy.limits.pids = 5;
    const auto plan = compile(policy, host, inputs);
    for (const CgroupWrite& write : plan->cgroup_writes)
      if (write.file == "pids.max") return write.value;
    return std::string{};
  };
  EXPECT_EQ(most(v1, {}), "5");
  EXPECT_EQ(most(v1, {.pool = true}), "6");
  EXPECT_EQ(most(root_host(), {}), "6");
}

TEST(Limits, swap_is_part_of_memory) {
  HostFeatures host = root_host();
  host.cgroup = {.version = CgroupVersion::v1, .memory = "/m", .pids = "/p", .cpu = "/c", .memsw = true};
  const auto v1 = compile({}, host, {});
  const auto v2 = compile({}, root_host(), {});
  const auto has = [](const Plan& plan, std::string_view file) {
    for (const CgroupWrite& write : plan.cgroup_writes)
      if (write.file == file) return true;
    return false;
  };
  EXPECT_TRUE(has(*v1, "memory.memsw.limit_in_bytes"));
  EXPECT_TRUE(has(*v2, "memory.swap.max"));
  EXPECT_TRUE(has(*v2, "memory.oom.group"));
}

}  // namespace
}  // namespace pctx
