// The thorough check of an Environment: every name and size against the manifest, every file that a wheel has a hash of
// against that.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "base/sha256.h"
#include "base/units.h"
#include "env/tree.h"
#include "sys/files.h"

namespace pctx::env {
namespace {

constexpr std::size_t kMostDifferences = 20;

// "a/b/../c" → "a/c"; empty if it leads out.
std::string normal(std::string_view path) {
  std::vector<std::string_view> parts;
  for (std::string_view part : sys::split(path, '/')) {
    if (part == "..") {
      if (parts.empty()) return "";
      parts.pop_back();
    } else if (!part.empty() && part != ".") {
      parts.push_back(part);
    }
  }
  return fmt::format("{}", fmt::join(parts, "/"));
}

}  // namespace

Result<std::vector<std::string>> compare_with_manifest(int top, std::string_view manifest) {
  std::map<std::string, std::string, std::less<>> expected;  // escaped path → kind and size
  for (std::string_view line : sys::split(manifest, '\n')) {
    const std::size_t blank = line.rfind(' ');
    if (blank == std::string_view::npos) continue;
    // Times of folders tell the quick check that something changed; here we look at what did.
    expected.emplace(line.substr(blank + 1), line.starts_with("D ") ? "D" : std::string{line.substr(0, blank)});
  }
  std::vector<std::string> differences, records;
  const auto differs = [&](const std::string& path, const char* how) {
    if (differences.size() < kMostDifferences) differences.push_back(fmt::format("{} {}", path, how));
  };
  PCTX_TRY(
      walk(top, [&](int, const std::string& name, const std::string& path, const struct stat& status) -> Result<void> {
        const std::string shown = manifest_path(path);
        if (path == "environment.json" || path == "manifest") return {};
        const auto found = expected.find(shown);
        if (found == expected.end()) {
          differs(shown, "was added");
          return {};
        }
        const std::string was = std::exchange(found->second, "seen");
        const std::string is = S_ISDIR(status.st_mode)   ? "D"
                               : S_ISLNK(status.st_mode) ? was.substr(0, 2) == "L " ? was : "L"
                                                         : fmt::format("F {}", status.st_size);
        if (was != is) differs(shown, "has another size or kind");
        const std::size_t slash = path.rfind('/');
        if (name == "RECORD" && slash != std::string::npos && path.substr(0, slash).ends_with(".dist-info"))
          records.push_back(path);
        return {};
      }));
  for (const auto& [path, state] : expected)
    if (state != "seen") differs(path, "is missing");
  for (const std::string& record : records) {
    const std::string text = read_below(top, record, 64_MiB);
    const std::string base = record.substr(0, record.rfind('/', record.rfind('/') - 1) + 1);
    for (std::string_view line : sys::split(text, '\n')) {
      const std::size_t mark = line.find(",sha256=");
      if (line.starts_with('"') || mark == std::string_view::npos) continue;
      const std::string path = normal(base + std::string{line.substr(0, mark)});
      const std::string_view digest = line.substr(mark + 8, 43);
      if (expected.find(manifest_path(path)) == expected.end()) continue;
      const auto file = sys::open_at(top, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
      const auto found = file ? sha256_of(file->get()) : std::nullopt;
      if (found && base64_url(*found) != digest) differs(manifest_path(path), "has other content");
    }
  }
  return differences;
}

}  // namespace pctx::env
