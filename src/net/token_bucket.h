// A rate in bytes per second: tokens come with time, bytes take them. Without a rate there are always enough.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

namespace pctx::net {

class TokenBucket {
 public:
  using Clock = std::chrono::steady_clock;

  TokenBucket(std::optional<std::uint64_t> rate, Clock::time_point now)
      : rate_(rate), burst_(rate ? std::max<std::uint64_t>(*rate / 8, 1024) : 0), tokens_(burst_ / 5), last_(now) {}

  std::uint64_t available(Clock::time_point now) {
    if (!rate_) return std::numeric_limits<std::uint64_t>::max();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    const auto fresh = static_cast<std::uint64_t>(std::clamp(seconds * static_cast<double>(*rate_), 0.0, 1e15));
    if (fresh > 0) {
      tokens_ = std::min(burst_, tokens_ + fresh);
      last_ = now;
    }
    return tokens_;
  }
  void take(std::uint64_t bytes) {
    if (rate_) tokens_ -= std::min(tokens_, bytes);
  }
  // How long until a worthwhile number is there: waking for every byte would cost more than the bytes. It is a small
  // part of what is kept, so that nothing is lost where we are woken late.
  Clock::duration wait() const {
    if (!rate_) return {};
    const double missing = static_cast<double>(burst_) / 5;
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(missing / static_cast<double>(*rate_)));
  }

 private:
  std::optional<std::uint64_t> rate_;
  std::uint64_t burst_, tokens_;
  Clock::time_point last_;
};

}  // namespace pctx::net
