#include "plan/refusal.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace pctx {
namespace {

seccomp_data named_call(std::string_view name, std::initializer_list<std::uint64_t> args = {}) {
  seccomp_data call{};
  call.nr = syscall_number(kHostArch, name).value_or(-1);
  call.arch = audit_arch(kHostArch);
  std::size_t i = 0;
  for (const std::uint64_t arg : args) call.args[i++] = arg;
  return call;
}

Plan plan_with(std::initializer_list<std::pair<const char*, Action>> rules, Action fallback = Action::allow()) {
  Plan plan;
  plan.layer(Layer::seccomp).on = true;
  plan.policy.seccomp = "/p.json";
  plan.profile = FilterSpec{.fallback = fallback};
  for (const auto& [name, action] : rules)
    plan.profile->rules.push_back({syscall_number(kHostArch, name).value_or(-1), action, {}});
  return plan;
}

TEST(Refusal, our_list_gives_its_reason) {
  Plan plan;
  plan.cgroup.version = CgroupVersion::v2;
  const RefusalAnswer ptrace = answer_refusal(plan, named_call("ptrace"));
  EXPECT_EQ(ptrace.code, EPERM);
  EXPECT_NE(ptrace.reason.find("not on the list"), std::string::npos);
  const RefusalAnswer clone = answer_refusal(plan, named_call("clone", {0x1000'0000}));
  EXPECT_NE(clone.reason.find("any flag that makes a namespace is refused"), std::string::npos);
}

TEST(Refusal, a_reason_says_what_would_help) {
  Plan plan;
  plan.cgroup.version = CgroupVersion::v2;
  for (const auto& call : {named_call("socket", {16, 3, 0}), named_call("chmod", {0, 04755}), named_call("setns"),
                           named_call("mknodat", {0, 0, 020666}), named_call("ioctl", {0, 0x5412})}) {
    const std::string reason = answer_refusal(plan, call).reason;
    EXPECT_TRUE(reason.ends_with("; --seccomp FILE replaces our list")) << reason;
    EXPECT_EQ(reason.find("goes anywhere"), std::string::npos) << reason;
  }
}

TEST(Refusal, filters_beyond_those_of_a_run_are_told_their_number) {
  Plan plan;
  EXPECT_NE(answer_refusal(plan, named_call("seccomp", {1})).reason.find("64 filters"), std::string::npos);
  EXPECT_EQ(answer_refusal(plan, named_call("prctl", {22, 2})).code, EINVAL);
  EXPECT_FALSE(makes_filter(plan_with({}), named_call("seccomp", {1}))) << "a profile says what it wants";
}

TEST(Refusal, for_want_of_cgroups_it_says_why_there_are_none) {
  Plan plan;
  plan.cgroup = {.version = CgroupVersion::none, .why_none = "nobody lent one"};
  for (const auto& call : {named_call("memfd_create"), named_call("fcntl", {0, 1031}), named_call("shmget"),
                           named_call("msgget"), named_call("mmap", {0, ~std::uint64_t{0}, 3, 0x21})}) {
    const RefusalAnswer answer = answer_refusal(plan, call);
    EXPECT_NE(answer.reason.find("only where memory is accounted"), std::string::npos) << answer.reason;
    EXPECT_NE(answer.reason.find("nobody lent one"), std::string::npos) << answer.reason;
    EXPECT_NE(answer.reason.find("pctx-sandbox doctor"), std::string::npos) << answer.reason;
  }
}

TEST(Refusal, what_cgroups_would_not_change_is_not_blamed_on_their_absence) {
  Plan with, without;
  with.cgroup.version = CgroupVersion::v2;
  without.cgroup = {.version = CgroupVersion::none, .why_none = "nobody lent one"};
  constexpr std::uint64_t kOfdSetLock = 37, kOfdSetLockWait = 38, kNotify = 1026;
  for (const auto& call :
       {named_call("ptrace"), named_call("clone", {0x1000'0000}), named_call("fcntl", {0, kOfdSetLock}),
        named_call("fcntl", {0, kOfdSetLockWait}), named_call("fcntl", {0, kNotify}),
        named_call("mmap", {0, 4096, 3, 0x4'0021}), named_call("mmap", {0, 4096, 3, 0x4'0022}),
        named_call("memfd_create", {0, 4}), named_call("shmget", {0, 4096, 04000})}) {
    const std::string reason = answer_refusal(without, call).reason;
    EXPECT_EQ(reason, answer_refusal(with, call).reason);
    EXPECT_EQ(reason.find("here it is not"), std::string::npos) << reason;
  }
}

TEST(Refusal, shared_memory_counts_in_full_and_in_huge_pages) {
  Plan plan;
  plan.policy.limits.memory = 64_MiB;
  plan.cgroup = {.version = CgroupVersion::none, .why_none = "nobody lent one"};
  EXPECT_EQ(shared_allowance(plan), 16_MiB);
  const auto mapping = [&](std::uint64_t length, std::uint64_t flags) {
    return shared_mapping(plan, named_call("mmap", {0, length, 3, flags}));
  };
  EXPECT_EQ(mapping(10, 0x21), 2_MiB);
  EXPECT_EQ(mapping(0, 0x21), 2_MiB) << "the kernel refuses it, and each grant costs us time";
  EXPECT_EQ(mapping(2_MiB, 0x23), 2_MiB);
  EXPECT_EQ(mapping(2_MiB + 1, 0x4021), 4_MiB);
  EXPECT_EQ(mapping(~std::uint64_t{0}, 0x21), std::nullopt);
  EXPECT_EQ(mapping(10, 0x22), std::nullopt) << "private";
  EXPECT_EQ(mapping(10, 0x4'0021), std::nullopt) << "MAP_HUGETLB: of any size";
  EXPECT_EQ(shared_mapping(plan, named_call("memfd_create", {0, 10, 3, 0x21})), std::nullopt);
  const std::string reason = answer_refusal(plan, named_call("mmap", {0, 32_MiB, 3, 0x21})).reason;
  EXPECT_NE(reason.find("nobody lent one"), std::string::npos) << reason;
  EXPECT_NE(reason.find("16 MiB"), std::string::npos) << reason;
  plan.cgroup.version = CgroupVersion::v2;
  EXPECT_EQ(mapping(10, 0x21), std::nullopt) << "nothing is refused here";
  EXPECT_EQ(shared_mapping(plan_with({{"mmap", Action::fail(EPERM)}}), named_call("mmap", {0, 10, 3, 0x21})),
            std::nullopt)
      << "a profile's refusal is not ours to lift";
}

TEST(Refusal, a_profile_is_answered_as_it_says) {
  const Plan plan =
      plan_with({{"mkdirat", Action::fail(EACCES)}, {"unlinkat", Action::fail(ENOSYS)}, {"bpf", Action::fail(0)}},
                Action::fail(EPERM));
  EXPECT_EQ(answer_refusal(plan, named_call("mkdirat")).code, EACCES);
  EXPECT_EQ(answer_refusal(plan, named_call("unlinkat")).code, ENOSYS);
  EXPECT_EQ(answer_refusal(plan, named_call("bpf")).code, 0);
  EXPECT_EQ(answer_refusal(plan, named_call("mount")).code, EPERM);
  EXPECT_EQ(answer_refusal(plan, named_call("mount")).reason, "the profile says so: /p.json");
}

TEST(Refusal, what_the_filter_kills_for_is_named) {
  Plan ours;
  EXPECT_EQ(killed_calls(ours), "") << "there is no filter";
  ours.layer(Layer::seccomp).on = true;
  EXPECT_EQ(killed_calls(ours), "calls of another architecture or of 32 bits");
  EXPECT_EQ(killed_calls(plan_with({{"mkdirat", Action::fail(EACCES)}})), killed_calls(ours));
  EXPECT_EQ(killed_calls(plan_with({{"mkdirat", Action::kill_process()},
                                    {"mkdirat", Action::kill_process()},
                                    {"unlinkat", {ActionKind::trap, 0}}})),
            "mkdirat, unlinkat by the profile, and " + killed_calls(ours));
  EXPECT_EQ(killed_calls(plan_with({}, Action::kill_process())),
            "calls that the profile does not allow, and " + killed_calls(ours));
  Plan many = plan_with({});
  for (int number = 0; number < 20; ++number) many.profile->rules.push_back({number, Action::kill_process(), {}});
  EXPECT_NE(killed_calls(many).find(" and 12 more by the profile"), std::string::npos) << killed_calls(many);
}

}  // namespace
}  // namespace pctx
