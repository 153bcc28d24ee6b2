#include "backend/lima/lima.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace pctx::backend::lima {
namespace {

Machine example() {
  return {.shared = "/home/u/.cache/pctx-sandbox/lima-x",
          .environments = "/home/u/.cache/pctx-sandbox/env",
          .cpus = 2,
          .memory = 2_GiB};
}

bool says(const std::string& text, std::string_view words) { return text.find(words) != std::string::npos; }

TEST(LimaTemplate, shares_two_folders_and_nothing_else) {
  const std::string text = template_text(example());
  EXPECT_TRUE(says(text, "- location: \"/home/u/.cache/pctx-sandbox/lima-x\"\n  writable: true\n"));
  EXPECT_TRUE(says(text, "- location: \"/home/u/.cache/pctx-sandbox/env\"\n  writable: false\n"));
  EXPECT_FALSE(says(text, "\"~"));
  EXPECT_TRUE(says(text, "mountTypesUnsupported: [\"9p\"]"));
  EXPECT_TRUE(says(text, "forwardAgent: false"));
  EXPECT_TRUE(says(text, "loadDotSSHPubKeys: false"));
  EXPECT_TRUE(says(text, "propagateProxyEnv: false"));
  EXPECT_TRUE(says(text, "guestPortRange: [1, 65535]\n  ignore: true"));
  EXPECT_TRUE(says(text, "cpus: 2\nmemory: \"2048MiB\""));
  EXPECT_TRUE(says(text, "arch: x86_64") && says(text, "arch: aarch64"));
}

TEST(LimaTemplate, quotes_what_a_name_may_hold) {
  Machine machine = example();
  machine.shared = "/home/a \"b\": \n- location: /";
  const std::string text = template_text(machine);
  EXPECT_TRUE(says(text, R"(- location: "/home/a \"b\": \n- location: /")"));
  EXPECT_FALSE(says(text, "\n- location: /\n"));
}

TEST(LimaTemplate, boots_an_image_of_the_users) {
  Machine machine = example();
  machine.image = "/images/disk.raw";
  machine.kernel = "/images/vmlinuz";
  machine.initrd = "/images/initrd";
  const std::string text = template_text(machine);
  EXPECT_TRUE(says(text, "- location: \"/images/disk.raw\"\n  kernel:\n    location: \"/images/vmlinuz\""));
  EXPECT_TRUE(says(text, "  initrd:\n    location: \"/images/initrd\""));
  EXPECT_FALSE(says(text, "debian"));
}

TEST(LimaList, tells_the_state_of_one_machine) {
  const std::string listed =
      "{\"name\":\"default\",\"status\":\"Running\"}\n{\"name\":\"pctx-sandbox\",\"status\":\"Stopped\"}\n";
  EXPECT_EQ(*state_of(listed, "pctx-sandbox"), State::stopped);
  EXPECT_EQ(*state_of(listed, "default"), State::running);
  EXPECT_EQ(*state_of(listed, "other"), State::absent);
  EXPECT_EQ(*state_of("", "pctx-sandbox"), State::absent);
  EXPECT_EQ(*state_of(R"({"name":"x","status":"Broken"})", "x"), State::broken);
  EXPECT_EQ(*state_of(R"({"name":"x"})", "x"), State::broken);
  for (const char* text : {"NAME STATUS", "[]", "{}", "{\"name\": 7}"})
    EXPECT_FALSE(state_of(text, "x").has_value()) << text;
}

}  // namespace
}  // namespace pctx::backend::lima
