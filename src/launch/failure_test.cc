#include <gtest/gtest.h>

#include <cerrno>

#include "launch/spawn.h"

namespace pctx {
namespace {

// A frame is words from another process: an index beyond the plan must be a sentence, never a crash of the Broker.
TEST(Failure, an_index_that_the_plan_does_not_have_is_still_described) {
  const Plan plan;
  for (int step = 0; step < 64; ++step) {
    const StatusFrame frame{Message{}, static_cast<Step>(step), 0, 65535, EACCES};
    const Error error = describe_failure(frame, plan, {});
    EXPECT_FALSE(error.what.empty());
    EXPECT_FALSE(error.hint.empty()) << error.what;
  }
}

TEST(Failure, the_setting_that_is_no_entry_of_the_plan_is_named) {
  const StatusFrame frame{Message{}, Step::setting, 0, 65535, EACCES};
  EXPECT_EQ(describe_failure(frame, Plan{}, {}).what, "cannot set the first process id in the box: Permission denied");
}

}  // namespace
}  // namespace pctx
