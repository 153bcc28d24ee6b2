#include "env/version.h"

#include <gtest/gtest.h>

namespace pctx::env {
namespace {

TEST(Version, satisfies_what_pep_440_says) {
  for (const char* list : {"", ">=3.10", ">=3.11.2", "<4", ">=3.8, <3.12", "==3.11.*", "~=3.10", "~=3.11.0", "!=3.9.*",
                           "==3.11.2", "===3.11.2", ">3", "<=3.11.2", " >= 3.10 , "})
    EXPECT_TRUE(*satisfies("3.11.2", list)) << list;
  for (const char* list :
       {">=3.12", "<3.11", "==3.10.*", "~=3.12", "~=3.11.3", "!=3.11.*", "==3.11", ">3.11.2", ">=3.8,<3.11", "<=3.11"})
    EXPECT_FALSE(*satisfies("3.11.2", list)) << list;
}

TEST(Version, compares_numbers_and_not_texts) {
  EXPECT_TRUE(*satisfies("3.10.0", ">=3.9"));
  EXPECT_TRUE(*satisfies("3.14.0rc2", ">=3.14"));
}

TEST(Version, anything_else_is_refused) {
  for (const char* list : {"3.11", ">=", ">=x", "^3.11", "~=3", ">=3.*", ">=3;rm", ">=99999999999999999999", "=3"})
    EXPECT_FALSE(satisfies("3.11.2", list).has_value()) << list;
}

}  // namespace
}  // namespace pctx::env
