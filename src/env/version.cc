#include "env/version.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "base/printable.h"
#include "base/units.h"
#include "sys/files.h"

namespace pctx::env {
namespace {

struct Release {
  std::vector<std::uint64_t> parts;
  bool wildcard = false;  // "3.11.*"
};

Error unreadable_versions(std::string_view text) {
  return usage_error(fmt::format("'{}' is not a list of Python versions", printable_path(text.substr(0, 80))),
                     "write it as PEP 440 does, for example \">=3.10,<4\"");
}

Result<Release> parse_release(std::string_view text, std::string_view whole) {
  Release release;
  if (text.ends_with(".*")) {
    release.wildcard = true;
    text.remove_suffix(2);
  }
  // Of "3.14.0rc2" or "3.12.0+local" only the release counts.
  const std::string_view rest = text.substr(std::min(text.find_first_not_of("0123456789."), text.size()));
  if (rest.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz.+") != std::string_view::npos)
    return unreadable_versions(whole);
  text.remove_suffix(rest.size());
  for (std::string_view part : sys::split(text, '.')) {
    const auto number = parse_count(part);
    if (!number || *number > 100'000 || release.parts.size() > 8) return unreadable_versions(whole);
    release.parts.push_back(*number);
  }
  if (release.parts.empty()) return unreadable_versions(whole);
  return release;
}

std::uint64_t part(const Release& release, std::size_t i) { return i < release.parts.size() ? release.parts[i] : 0; }

int compare(const Release& a, const Release& b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (part(a, i) != part(b, i)) return part(a, i) < part(b, i) ? -1 : 1;
  return 0;
}

Result<bool> satisfies_one(const Release& version, std::string_view specifier, std::string_view whole) {
  for (std::string_view sign : kVersionOperators) {
    if (!specifier.starts_with(sign)) continue;
    const Release other = PCTX_TRY(parse_release(sys::trimmed(specifier.substr(sign.size())), whole));
    if (other.wildcard && sign != "==" && sign != "!=") return unreadable_versions(whole);
    constexpr std::size_t kAll = 10;
    const int order = compare(version, other, other.wildcard ? other.parts.size() : kAll);
    if (sign == "==" || sign == "===") return order == 0;
    if (sign == "!=") return order != 0;
    if (sign == ">=") return order >= 0;
    if (sign == "<=") return order <= 0;
    if (sign == ">") return order > 0;
    if (sign == "<") return order < 0;
    if (other.parts.size() < 2) return unreadable_versions(whole);  // ~=3 means nothing
    return order >= 0 && compare(version, other, other.parts.size() - 1) == 0;
  }
  return unreadable_versions(whole);
}

}  // namespace

Result<bool> satisfies(std::string_view version, std::string_view specifiers) {
  const Release release = PCTX_TRY(parse_release(version, version));
  bool all = true;
  for (std::string_view specifier : sys::split(specifiers, ','))
    if (const std::string_view one = sys::trimmed(specifier); !one.empty())
      all &= PCTX_TRY(satisfies_one(release, one, specifiers));
  return all;
}

}  // namespace pctx::env
