#include "launch/profile_text.h"

#include <gtest/gtest.h>

#include "sys/kernel_abi.h"

namespace pctx {
namespace {

Plan plan_lending(std::string lent) {
  Plan plan;
  plan.root = {{.kind = RootOpKind::directory, .target = "usr"},
               {.kind = RootOpKind::bind, .target = "usr", .text = "/usr", .directory = true},
               {.kind = RootOpKind::bind, .target = std::move(lent), .text = "/x", .directory = true},
               {.kind = RootOpKind::bind, .target = "opt/venv/pyvenv.cfg", .text = "/x"},
               {.kind = RootOpKind::bind, .target = "dev/null", .text = "/dev/null", .device = true},
               {.kind = RootOpKind::scratch, .target = "tmp"}};
  return plan;
}

TEST(PayloadProfile, names_what_the_box_has_and_nothing_else) {
  const auto text = payload_profile("mine", plan_lending("home/ada/venv/lib"));
  ASSERT_TRUE(text);
  for (const char* rule :
       {"profile mine flags=", "profile mine-zygote flags=", "  /usr/** mrix,\n", "  /home/ada/venv/lib/** mrix,\n",
        "  /opt/venv/pyvenv.cfg mrix,\n", "  /dev/null rw,\n", "  /tmp/** mrwlkix,\n", "  deny mount,\n",
        "  deny capability,\n", "  signal (send) peer=mine-zygote,\n", "  include if exists <local/mine>\n"})
    EXPECT_NE(text->find(rule), std::string::npos) << rule << "\n" << *text;
  const std::size_t launch = text->find("profile mine-launch flags=");
  ASSERT_NE(launch, std::string::npos) << *text;
  const std::string payload = text->substr(0, launch);
  for (const char* rule : {"  file,", "/home/ada/**", "  /** ", "userns", "  /proc/** rw"})
    EXPECT_EQ(payload.find(rule), std::string::npos) << rule;
  for (const char* rule : {"  mount,\n", "  pivot_root,\n", "  change_profile -> mine,\n",
                           "  change_profile -> mine-zygote,\n", "  signal (send) peer=mine,\n"})
    EXPECT_NE(text->find(rule, launch), std::string::npos) << rule << "\n" << *text;
  for (const char* rule :
       {"  capability,", "sys_module", "sys_ptrace", "ptrace (trace", "network packet raw", "unconfined"})
    EXPECT_EQ(text->find(rule, launch), std::string::npos) << rule;
}

TEST(PayloadProfile, a_path_that_is_more_than_itself_is_refused) {
  EXPECT_NE(payload_profile("mine", plan_lending("a b/lib"))->find("  \"/a b/lib/**\" mrix,\n"), std::string::npos);
  for (const char* path : {"a*/lib", "a{b,c}", "a\"b", "@{HOME}/x", "a\nb", "a?", "a[b]"})
    EXPECT_FALSE(payload_profile("mine", plan_lending(path))) << path;
}

TEST(ProfileDiff, shows_changed_lines_with_their_neighbours) {
  EXPECT_EQ(profile_diff("a\nb\n", "a\nb\n"), "");
  EXPECT_EQ(profile_diff("1\n2\n3\n4\n5\nold\n6\n7\n8\n9\n", "1\n2\n3\n4\n5\nnew\n6\n7\n8\n9\n"),
            "  4\n  5\n- old\n+ new\n  6\n  7\n");
  EXPECT_EQ(profile_diff("a\n", "a\nb\n"), "  a\n+ b\n");
}

}  // namespace
}  // namespace pctx
