#include "env/key.h"

#include <algorithm>

#include "base/sha256.h"

namespace pctx::env {
namespace {

constexpr std::size_t kDigits = 32;
// Raised when Environments of before must not be found again.
constexpr const char* kKeyFormat = "pctx-sandbox environment 1";

}  // namespace

std::string make_key(const std::vector<Requirement>& requirements, const Interpreter& interpreter, bool source) {
  std::string text{kKeyFormat};
  // None of these holds a NUL, so that no two lists make the same text.
  for (const std::string& part : {interpreter.implementation, interpreter.version, interpreter.executable,
                                  interpreter.platform, interpreter.libc, std::string{source ? "source" : "wheels"}})
    text += '\0' + part;
  for (const Requirement& requirement : requirements) text += '\0' + requirement.text();
  return sha256_hex(text).substr(0, kDigits);
}

bool is_key(std::string_view text) {
  return text.size() == kDigits &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace pctx::env
