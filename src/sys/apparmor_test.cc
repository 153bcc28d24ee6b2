#include "sys/apparmor.h"

#include <gtest/gtest.h>

namespace pctx::sys {
namespace {

TEST(AppArmorLabel, a_mode_is_not_part_of_the_name) {
  EXPECT_EQ(confining_profile("docker-default (enforce)\n"), "docker-default");
  EXPECT_EQ(confining_profile("a//&b (complain)"), "a//&b");
  EXPECT_EQ(confining_profile("/usr/bin/with (brackets) (enforce)"), "/usr/bin/with (brackets)");
}

TEST(AppArmorLabel, what_is_unconfined_is_no_profile) {
  EXPECT_EQ(confining_profile("unconfined\n"), "");
  EXPECT_EQ(confining_profile("pctx-sandbox (unconfined)"), "");
  EXPECT_EQ(confining_profile(""), "");
  EXPECT_EQ(confining_profile("unconfined-not (enforce)"), "unconfined-not");  // the control
}

TEST(AppArmorLabel, a_profile_that_nobody_loaded_has_no_mode) {
  EXPECT_EQ(profile_mode("pctx-sandbox-of-this-name-there-is-none"), std::nullopt);
}

}  // namespace
}  // namespace pctx::sys
