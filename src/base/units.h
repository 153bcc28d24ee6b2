// Sizes and durations as people write them: "512M", "1.5G", "30s", "2m". Strict: anything else is an error that says
// what is accepted.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pctx {

using Millis = std::chrono::milliseconds;

constexpr std::uint64_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr std::uint64_t operator""_MiB(unsigned long long n) { return n << 20; }
constexpr std::uint64_t operator""_GiB(unsigned long long n) { return n << 30; }

// Bytes; K, M, G and T are powers of 1024, with or without a trailing "B" or "iB".
Result<std::uint64_t> parse_size(std::string_view text);
// Seconds unless a unit follows: ms, s, m, h.
Result<Millis> parse_duration(std::string_view text);
// Number of CPUs: a positive decimal with at most three places ("0.5"), in thousandths.
Result<std::uint32_t> parse_cpus(std::string_view text);
// A whole number and nothing else.
Result<std::uint64_t> parse_count(std::string_view text);

std::string format_size(std::uint64_t bytes);        // "64 MiB"
std::string format_duration(Millis duration);        // "30 s", "1.5 s", "250 ms"
std::string format_cpus(std::uint32_t thousandths);  // "0.5"

}  // namespace pctx
