#include "env/requirement.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/printable.h"
#include "env/version.h"
#include "sys/files.h"

namespace pctx::env {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t'; }
bool is_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }
bool is_name(char c) { return is_alnum(c) || c == '-' || c == '_' || c == '.'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lowered(std::string_view text) {
  std::string result{text};
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

// For messages: what somebody else wrote, short and safe to show.
std::string shown(std::string_view text) { return printable_path(text.substr(0, 80)); }

class Reader {
 public:
  explicit Reader(std::string_view text) : whole_(text), rest_(text) {}

  void skip() { rest_ = sys::trimmed(rest_); }
  bool take(char c) {
    skip();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  template <class Accept>
  std::string_view take_while(Accept accept) {
    skip();
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), accept);
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(end - rest_.begin()));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const { return rest_; }
  bool done() {
    skip();
    return rest_.empty();
  }
  Error error(std::string_view why) const {
    return usage_error(fmt::format("'{}' is not a requirement: {}", shown(whole_), why),
                       "write a name with versions as PEP 508 does, for example \"pandas>=2,<3\"");
  }

 private:
  std::string_view whole_, rest_;
};

bool ends_as_name(std::string_view name) { return !name.empty() && is_alnum(name.front()) && is_alnum(name.back()); }

Result<void> read_extras(Reader& reader, Requirement& requirement) {
  if (!reader.take('[')) return {};
  while (!reader.take(']')) {
    const std::string_view extra = reader.take_while(is_name);
    if (!ends_as_name(extra)) return reader.error("its list of extras cannot be read");
    requirement.extras.push_back(normalise_name(extra));
    if (!reader.take(',') && !reader.rest().starts_with(']')) return reader.error("its list of extras has no end");
  }
  std::sort(requirement.extras.begin(), requirement.extras.end());
  requirement.extras.erase(std::unique(requirement.extras.begin(), requirement.extras.end()), requirement.extras.end());
  return {};
}

Result<void> read_specifiers(Reader& reader, Requirement& requirement) {
  const bool parenthesised = reader.take('(');
  do {
    reader.skip();
    const auto found = std::find_if(kVersionOperators.begin(), kVersionOperators.end(),
                                    [&](std::string_view name) { return reader.rest().starts_with(name); });
    if (found == kVersionOperators.end()) {
      if (requirement.specifiers.empty() && !parenthesised) return {};
      return reader.error("a version needs an operator such as == or >= before it");
    }
    for (std::size_t i = 0; i < found->size(); ++i) (void)reader.take((*found)[i]);
    std::string_view version = reader.take_while(
        [](char c) { return is_alnum(c) || c == '.' || c == '*' || c == '+' || c == '!' || c == '-' || c == '_'; });
    if (version.starts_with('v') || version.starts_with('V')) version.remove_prefix(1);
    if (version.empty() || !(version.front() >= '0' && version.front() <= '9'))
      return reader.error(fmt::format("no version follows {}", *found));
    requirement.specifiers.push_back(std::string{*found} + lowered(version));
  } while (reader.take(','));
  if (parenthesised && !reader.take(')')) return reader.error("a parenthesis is not closed");
  std::sort(requirement.specifiers.begin(), requirement.specifiers.end());
  requirement.specifiers.erase(std::unique(requirement.specifiers.begin(), requirement.specifiers.end()),
                               requirement.specifiers.end());
  return {};
}

// White space outside quotes becomes one blank; what is quoted stays as it is.
Result<void> read_marker(Reader& reader, Requirement& requirement) {
  char quote = 0;
  bool blank = false;
  for (char c : sys::trimmed(reader.rest())) {
    if (quote == 0 && is_space(c)) {
      blank = true;
      continue;
    }
    if (quote == 0 && !is_alnum(c) && std::string_view{"()<>=!~_.,'\""}.find(c) == std::string_view::npos)
      return reader.error("its marker cannot be read");
    if (std::exchange(blank, false)) requirement.marker += ' ';
    if (quote == 0 && (c == '\'' || c == '"'))
      quote = c;
    else if (c == quote)
      quote = 0;
    requirement.marker += c;
  }
  if (quote != 0 || requirement.marker.empty()) return reader.error("its marker has no end");
  return {};
}

// Why this text would choose where a package comes from, or an empty text.
std::string_view foreign_source(std::string_view text) {
  if (text.front() == '-') return "it is an option";
  if (text.find("://") != std::string_view::npos) return "it is an address";
  if (text.front() == '.' || text.front() == '/' || text.front() == '~' || text.front() == '\\') return "it is a path";
  const std::string_view head = text.substr(0, text.find_first_of(";[<>=!~( "));
  if (head.find('/') != std::string_view::npos || head.find('\\') != std::string_view::npos) return "it is a path";
  for (std::string_view end : {".whl", ".zip", ".tar.gz", ".tar.bz2", ".txt", ".toml"})
    if (head.ends_with(end)) return "it is a file";
  return "";
}

constexpr std::array<std::string_view, 4> kAllowedSchemes{"https://", "http://", "file:///", "git+https://"};

Result<void> read_url(Reader& reader, Requirement& requirement) {
  const std::string_view url = reader.take_while([](char c) { return !is_space(c); });
  const bool known = std::any_of(kAllowedSchemes.begin(), kAllowedSchemes.end(),
                                 [&](std::string_view scheme) { return url.starts_with(scheme); });
  if (!known) return reader.error("its address is none of https, http, file and git+https");
  requirement.url = url;
  return {};
}

}  // namespace

std::string normalise_name(std::string_view name) {
  std::string result;
  for (char c : name) {
    if (is_alnum(c))
      result += lower(c);
    else if (!result.empty() && result.back() != '-')
      result += '-';
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  return result;
}

std::string Requirement::text() const {
  std::string result = name;
  if (!extras.empty()) result += fmt::format("[{}]", fmt::join(extras, ","));
  if (!url.empty()) result += fmt::format(" @ {}", url);
  result += fmt::format("{}", fmt::join(specifiers, ","));
  // Behind an address a semicolon needs a blank before it, or it is part of the address.
  if (!marker.empty()) result += fmt::format("{}; {}", url.empty() ? "" : " ", marker);
  return result;
}

Result<Requirement> parse_requirement(std::string_view text, bool allow_urls) {
  if (text.size() > kMaxRequirementBytes)
    return usage_error(fmt::format("a requirement is longer than {} bytes", kMaxRequirementBytes),
                       "give each requirement as a word of its own");
  for (char c : text)
    // A line break would start a line of its own in what the installer reads; `$` and `#` mean something there.
    if ((c < ' ' && c != '\t') || c == 0x7f || static_cast<unsigned char>(c) > 0x7f || c == '$' ||
        (c == '#' && !allow_urls))
      return usage_error(fmt::format("'{}' is not a requirement: it holds a character that none has", shown(text)),
                         "give each requirement as a word of its own");
  text = sys::trimmed(text);
  if (text.empty()) return usage_error("a requirement is empty", "write a name, for example pandas");
  Reader reader{text};
  Requirement requirement;
  const auto name_end = std::find_if_not(text.begin(), text.end(), is_name);
  std::string_view after = sys::trimmed(text.substr(static_cast<std::size_t>(name_end - text.begin())));
  if (const std::size_t close = after.find(']'); after.starts_with('[') && close != std::string_view::npos)
    after = sys::trimmed(after.substr(close + 1));
  const bool direct = after.starts_with('@');
  if (direct && !allow_urls)
    return usage_error(fmt::format("'{}' is refused: a requirement does not choose its own address", shown(text)),
                       "name the index in UV_* or pip.conf, or allow addresses with PCTX_SANDBOX_ALLOW_URLS=1");
  if (const std::string_view why = foreign_source(text); !why.empty() && !direct)
    return usage_error(fmt::format("'{}' is refused: {}, not the name of a package", shown(text), why),
                       allow_urls ? "write NAME @ ADDRESS"
                                  : "give names only; indexes are set by UV_* variables or pip.conf on the host");
  const std::string_view name = reader.take_while(is_name);
  if (!ends_as_name(name)) return reader.error("it does not start with the name of a package");
  requirement.name = normalise_name(name);
  PCTX_TRY(read_extras(reader, requirement));
  if (reader.take('@'))
    PCTX_TRY(read_url(reader, requirement));
  else
    PCTX_TRY(read_specifiers(reader, requirement));
  if (reader.take(';')) {
    PCTX_TRY(read_marker(reader, requirement));
    return requirement;
  }
  if (!reader.done()) return reader.error(fmt::format("'{}' has no place in it", shown(reader.rest())));
  return requirement;
}

Result<std::vector<Requirement>> parse_requirements(const std::vector<std::string>& texts, bool allow_urls) {
  if (texts.size() > kMaxRequirements)
    return usage_error(fmt::format("more than {} requirements are given", kMaxRequirements),
                       "name those that you import; what they need comes with them");
  std::vector<Requirement> all;
  all.reserve(texts.size());
  for (const std::string& text : texts) all.push_back(PCTX_TRY(parse_requirement(text, allow_urls)));
  const auto before = [](const Requirement& a, const Requirement& b) { return a.text() < b.text(); };
  const auto same = [](const Requirement& a, const Requirement& b) { return a.text() == b.text(); };
  std::sort(all.begin(), all.end(), before);
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  return all;
}

}  // namespace pctx::env
