// One requirement as PEP 508 writes it, read strictly and brought into one form. What is not a plain name with versions
// (options, paths, addresses) is refused: a list of packages must not choose where packages come from. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pctx::env {

struct Requirement {
  std::string name;                     // PEP 503: lower case, one dash for every run of dashes, dots, underscores
  std::vector<std::string> extras;      // likewise, sorted
  std::vector<std::string> specifiers;  // ">=1.0", sorted
  std::string url;                      // `name @ url`, only where addresses are allowed
  std::string marker;                   // as written, white space collapsed

  // "name[a,b]<2,>=1; marker": the same text for everything that means the same.
  std::string text() const;
};

std::string normalise_name(std::string_view name);

Result<Requirement> parse_requirement(std::string_view text, bool allow_urls);

// All of them, normalised, sorted, each once.
Result<std::vector<Requirement>> parse_requirements(const std::vector<std::string>& texts, bool allow_urls);

inline constexpr std::size_t kMaxRequirements = 500;
inline constexpr std::size_t kMaxRequirementBytes = 2000;

}  // namespace pctx::env
