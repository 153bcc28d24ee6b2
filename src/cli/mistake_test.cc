#include "cli/mistake.h"

#include <gtest/gtest.h>

namespace pctx::cli {
namespace {

const std::vector<std::string> kVerbs{"run", "explain", "env", "doctor", "stop", "status"};
const std::vector<std::string> kOptions{"--memory", "--mnt", "--net-rate", "--net-bytes", "--ro"};

TEST(Mistake, the_nearest_word_is_a_slip_away) {
  EXPECT_EQ(nearest("runn", kVerbs), "run");
  EXPECT_EQ(nearest("rnu", kVerbs), "run");
  EXPECT_EQ(nearest("docter", kVerbs), "doctor");
  EXPECT_EQ(nearest("--memroy", kOptions), "--memory");
}

TEST(Mistake, the_beginning_of_a_word_is_near_to_it) {
  EXPECT_EQ(nearest("exp", kVerbs), "explain");
  EXPECT_EQ(nearest("--mem", kOptions), "--memory");
}

TEST(Mistake, nothing_is_offered_for_a_word_that_is_far_from_all) {
  EXPECT_EQ(nearest("frobnicate", kVerbs), "");
  EXPECT_EQ(nearest("--", kOptions), "");
  EXPECT_EQ(nearest("", kVerbs), "");
  EXPECT_EQ(nearest("--frobnicate", kOptions), "");
}

}  // namespace
}  // namespace pctx::cli
