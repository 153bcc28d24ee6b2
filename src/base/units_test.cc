#include "base/units.h"

#include <gtest/gtest.h>

namespace pctx {
namespace {

TEST(Units, sizes_are_powers_of_1024) {
  EXPECT_EQ(*parse_size("512M"), 512_MiB);
  EXPECT_EQ(*parse_size("512MB"), 512_MiB);
  EXPECT_EQ(*parse_size("512MiB"), 512_MiB);
  EXPECT_EQ(*parse_size("512m"), 512_MiB);
  EXPECT_EQ(*parse_size("1.5G"), 1536_MiB);
  EXPECT_EQ(*parse_size("0"), 0U);
  EXPECT_EQ(*parse_size("100"), 100U);
}

TEST(Units, anything_else_is_refused) {
  for (const char* text : {"", "M", "-1", "1e3", "1 M", "1Mx", "0x10", "nan", "inf", "1..2", "99999999999999T", " 1"})
    EXPECT_FALSE(parse_size(text).has_value()) << text;
  for (const char* text : {"", "s", "-1s", "1d", "1 s", "1e400"})
    EXPECT_FALSE(parse_duration(text).has_value()) << text;
  for (const char* text : {"", "0", "-1", "x", "0.0001", "1e3"}) EXPECT_FALSE(parse_cpus(text).has_value()) << text;
  for (const char* text : {"", "1.5", "-1", "x", "99999999999999999999"})
    EXPECT_FALSE(parse_count(text).has_value()) << text;
}

TEST(Units, too_much_is_not_called_unreadable) {
  const auto says = [](const auto& result, const char* words) {
    return result.error().what.find(words) != std::string::npos && !result.error().hint.empty();
  };
  EXPECT_TRUE(says(parse_size("99999999T"), "too large"));
  EXPECT_TRUE(says(parse_duration("99999999h"), "too long"));
  EXPECT_TRUE(says(parse_cpus("1001"), "more CPUs than"));
  EXPECT_TRUE(says(parse_count("99999999999999999999"), "too large"));
  EXPECT_TRUE(says(parse_count("99999999999999999999x"), "not a whole number"));
  EXPECT_TRUE(parse_duration("277777h").has_value()) << "as the hint says";
  EXPECT_TRUE(parse_size("1024T").has_value() && parse_cpus("1000").has_value());
}

TEST(Units, durations_default_to_seconds) {
  EXPECT_EQ(*parse_duration("30"), Millis{30'000});
  EXPECT_EQ(*parse_duration("250ms"), Millis{250});
  EXPECT_EQ(*parse_duration("1.5s"), Millis{1500});
  EXPECT_EQ(*parse_duration("2m"), Millis{120'000});
  EXPECT_EQ(*parse_duration("0.0001"), Millis{1}) << "a limit is never rounded down to none";
}

TEST(Units, print_as_people_read_them) {
  EXPECT_EQ(format_size(64_MiB), "64 MiB");
  EXPECT_EQ(format_size(1536_MiB), "1.5 GiB");
  EXPECT_EQ(format_duration(Millis{30'000}), "30 s");
  EXPECT_EQ(format_duration(Millis{250}), "250 ms");
  EXPECT_EQ(format_duration(Millis{1500}), "1.5 s");
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1_KiB + 1), "1.0 KiB");
  EXPECT_EQ(format_size(UINT64_MAX), "16777216.0 TiB");
  EXPECT_EQ(format_cpus(500), "0.5");
  EXPECT_EQ(format_cpus(2000), "2");
  EXPECT_EQ(format_cpus(1234), "1.234");
}

}  // namespace
}  // namespace pctx
