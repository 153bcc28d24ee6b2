#include "plan/ready_filters.h"

#include <gtest/gtest.h>

#include <cstring>

namespace pctx {
namespace {

TEST(ReadyFilters, AreWhatWouldBeCompiledNow) {
  for (std::size_t number = 0; number < kFilterVariants; ++number) {
    const FilterOptions options = filter_variant(number);
    ASSERT_EQ(variant_number(options), number);
    const auto program = compile_filter(default_filter(kHostArch, options));
    ASSERT_TRUE(program);
    const auto ready = ready_filter(options);
    ASSERT_EQ(ready.size(), program->size()) << number;
    EXPECT_EQ(std::memcmp(ready.data(), program->data(), ready.size_bytes()), 0) << number;
  }
}

// One byte of an option that the number forgot would give somebody else's filter.
TEST(ReadyFilters, DifferFromEachOther) {
  for (std::size_t one = 0; one < kFilterVariants; ++one)
    for (std::size_t other = 0; other < one; ++other) {
      const auto first = ready_filter(filter_variant(one)), second = ready_filter(filter_variant(other));
      EXPECT_FALSE(first.size() == second.size() && std::memcmp(first.data(), second.data(), first.size_bytes()) == 0)
          << one << " " << other;
    }
}

}  // namespace
}  // namespace pctx
