// The policy reader on any bytes: never a crash, and what it accepts survives a round trip and the validator.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "policy/policy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto policy = pctx::policy_from_json(text);
  if (!policy) {
    if (policy.error().what.empty() || policy.error().hint.empty()) std::abort();  // every refusal says why
    return 0;
  }
  const bool valid = pctx::validate(*policy).has_value();
  const std::string written = pctx::policy_to_json(*policy);
  const auto again = pctx::policy_from_json(written);
  // Bytes that are not UTF-8 are replaced when written; all else is kept.
  if (valid && again && pctx::policy_to_json(*again) != written) std::abort();
  return 0;
}
