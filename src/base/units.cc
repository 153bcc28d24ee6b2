#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace pctx {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 17> kSizes{{{"", 1},
                                       {"B", 1},
                                       {"K", 0x1p10},
                                       {"KB", 0x1p10},
                                       {"KiB", 0x1p10},
                                       {"k", 0x1p10},
                                       {"M", 0x1p20},
                                       {"MB", 0x1p20},
                                       {"MiB", 0x1p20},
                                       {"m", 0x1p20},
                                       {"G", 0x1p30},
                                       {"GB", 0x1p30},
                                       {"GiB", 0x1p30},
                                       {"g", 0x1p30},
                                       {"T", 0x1p40},
                                       {"TB", 0x1p40},
                                       {"TiB", 0x1p40}}};
constexpr std::array<Unit, 5> kDurations{{{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}}};

// A decimal number without sign or exponent, followed by one of `units`; nullopt for anything else.
template <std::size_t N>
std::optional<double> scaled(std::string_view text, const std::array<Unit, N>& units) {
  const std::size_t end = text.find_first_not_of("0123456789.");
  const std::string_view digits = text.substr(0, end);
  const std::string_view unit = end == std::string_view::npos ? std::string_view{} : text.substr(end);
  double number = 0;
  const auto [stop, status] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::fixed);
  if (status != std::errc{} || stop != digits.data() + digits.size()) return std::nullopt;
  for (const Unit& candidate : units)
    if (candidate.name == unit) return number * candidate.factor;
  return std::nullopt;
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  const auto value = scaled(text, kSizes);
  if (!value)
    return usage_error(fmt::format("'{}' is not a size", text), "write a number with K, M, G or T, for example 512M");
  if (*value >= 0x1p62) return usage_error(fmt::format("'{}' is too large a size", text), "write at most 1024T");
  return static_cast<std::uint64_t>(*value);
}

Result<Millis> parse_duration(std::string_view text) {
  const auto value = scaled(text, kDurations);
  if (!value)
    return usage_error(fmt::format("'{}' is not a duration", text),
                       "write a number with ms, s, m or h, for example 30s");
  if (*value > 1e12) return usage_error(fmt::format("'{}' is too long", text), "the longest duration is 277777h");
  return Millis{static_cast<Millis::rep>(std::ceil(*value))};
}

Result<std::uint32_t> parse_cpus(std::string_view text) {
  const auto value = scaled(text, std::array<Unit, 1>{{{"", 1000}}});
  if (!value || *value <= 0)
    return usage_error(fmt::format("'{}' is not a number of CPUs", text), "write a positive number, for example 0.5");
  if (*value < 1) return usage_error(fmt::format("'{}' is too little of a CPU", text), "0.01 is the least");
  if (*value > 1e6) return usage_error(fmt::format("'{}' is more CPUs than any machine has", text), "1000 is the most");
  return static_cast<std::uint32_t>(std::lround(*value));
}

Result<std::uint64_t> parse_count(std::string_view text) {
  std::uint64_t value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status == std::errc::result_out_of_range && stop == text.data() + text.size())
    return usage_error(fmt::format("'{}' is too large", text), "write a smaller number");
  if (status != std::errc{} || stop != text.data() + text.size() || text.empty())
    return usage_error(fmt::format("'{}' is not a whole number", text), "write digits only");
  return value;
}

std::string format_size(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  std::uint64_t one = 1;
  std::size_t unit = 0;
  while (bytes / one >= 1024 && unit + 1 < kNames.size()) one *= 1024, ++unit;
  if (bytes % one == 0) return fmt::format("{} {}", bytes / one, kNames[unit]);
  return fmt::format("{:.1f} {}", static_cast<double>(bytes) / static_cast<double>(one), kNames[unit]);
}

std::string format_duration(Millis duration) {
  const auto ms = duration.count();
  if (ms % 1000 == 0) return fmt::format("{} s", ms / 1000);
  if (ms < 1000) return fmt::format("{} ms", ms);
  return fmt::format("{:.3g} s", static_cast<double>(ms) / 1000);
}

std::string format_cpus(std::uint32_t thousandths) {
  if (thousandths % 1000 == 0) return fmt::format("{}", thousandths / 1000);
  return fmt::format("{:g}", thousandths / 1000.0);
}

}  // namespace pctx
