#include <gtest/gtest.h>

#include "plan/plan.h"

namespace pctx {
namespace {

HostFeatures host_with_apparmor() {
  HostFeatures host;
  host.privileged = true;
  host.first_free_id = 0x70000000;
  host.attach_point = "/tmp";
  host.apparmor = host.apparmor_profile = true;
  return host;
}

Policy under(const char* name) {
  Policy policy;
  policy.apparmor = name;
  return policy;
}

const LayerState& layer(const Result<Plan>& plan) { return plan->layer(Layer::apparmor); }

TEST(AppArmorPlan, the_receipt_names_profile_and_mode) {
  const auto plan = compile({}, host_with_apparmor(), {});
  EXPECT_TRUE(layer(plan).on);
  EXPECT_EQ(layer(plan).detail, "pctx-sandbox-guest (enforce)");
  EXPECT_EQ(plan->apparmor, "pctx-sandbox-guest");
  EXPECT_EQ(compile({}, host_with_apparmor(), {.pool = true})->apparmor, "pctx-sandbox-zygote");
  const auto named = compile(under("mine"), host_with_apparmor(), {.profile_mode = "enforce"});
  EXPECT_EQ(layer(named).detail, "mine (enforce)");
  EXPECT_EQ(compile(under("mine"), host_with_apparmor(), {.pool = true, .profile_mode = "enforce"})->apparmor,
            "mine-zygote");
}

TEST(AppArmorPlan, a_named_profile_that_is_not_there_is_an_error) {
  ASSERT_TRUE(compile(under("mine"), host_with_apparmor(), {.profile_mode = "enforce"}));  // the control
  const auto refused = compile(under("mine"), host_with_apparmor(), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().what, "the AppArmor profile mine is not loaded");
  HostFeatures without = host_with_apparmor();
  without.apparmor = without.apparmor_profile = false;
  EXPECT_FALSE(compile(under("mine"), without, {.profile_mode = "enforce"}));
  EXPECT_TRUE(compile({}, without, {})) << "where nobody names one it is used where it is";
}

TEST(AppArmorPlan, it_is_put_on_top_of_what_confines_the_caller) {
  EXPECT_FALSE(compile({}, host_with_apparmor(), {})->apparmor_stack);
  HostFeatures confined = host_with_apparmor();
  confined.confined_by = "service";
  const auto plan = compile({}, confined, {});
  EXPECT_TRUE(plan->apparmor_stack);
  EXPECT_EQ(layer(plan).detail, "service//&pctx-sandbox-guest (enforce)");
}

TEST(AppArmorPlan, those_who_make_the_box_have_a_profile_of_their_own_where_there_is_one) {
  HostFeatures host = host_with_apparmor();
  EXPECT_EQ(compile({}, host, {})->apparmor_launch, "") << "written by an older program";
  host.launch_profile = true;
  EXPECT_EQ(compile({}, host, {})->apparmor_launch, "pctx-sandbox-launch");
  EXPECT_EQ(compile({}, host, {.pool = true})->apparmor_launch, "pctx-sandbox-launch");
  EXPECT_EQ(compile(under("mine"), host, {.profile_mode = "enforce"})->apparmor_launch, "") << "written by hand";
  EXPECT_EQ(compile(under("mine"), host, {.profile_mode = "enforce", .launch_profile = true})->apparmor_launch,
            "mine-launch");
  host.confined_by = "service";
  EXPECT_EQ(compile({}, host, {})->apparmor_launch, "") << "the caller's own confines them";
}

TEST(AppArmorPlan, a_profile_that_refuses_nothing_does_not_count) {
  HostFeatures host = host_with_apparmor();
  host.apparmor_mode = "complain";
  const auto plan = compile({}, host, {});
  EXPECT_FALSE(layer(plan).on);
  EXPECT_EQ(layer(plan).detail, "pctx-sandbox-guest (complain)");
  ASSERT_EQ(plan->notices.size(), 1U + compile({}, host_with_apparmor(), {})->notices.size());
  Policy policy;
  policy.require.set(index(Layer::apparmor));
  EXPECT_FALSE(compile(policy, host, {}));
}

TEST(AppArmorPlan, a_name_is_never_more_than_a_name) {
  for (const char* name : {"my_profile", "a", "a.b-C_9"}) EXPECT_TRUE(is_profile_name(name)) << name;
  for (const char* name : {"", "a b", "../x", "a/b", "a\nexec b", "-r", ".x", "a\"", "a//&b", "@{x}"})
    EXPECT_FALSE(is_profile_name(name)) << name;
  EXPECT_FALSE(is_profile_name(std::string(101, 'a')));
}

}  // namespace
}  // namespace pctx
