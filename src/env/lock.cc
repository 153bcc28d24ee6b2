#include "env/lock.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "env/requirement.h"
#include "sys/files.h"

namespace pctx::env {
namespace {

constexpr std::size_t kMaxPackages = 5000;
constexpr std::size_t kMaxModules = 64;

// The text behind `key = "` up to the next quote.
std::string_view quoted_after(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos) return "";
  line.remove_prefix(at + key.size());
  return line.substr(0, line.find('"'));
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_version(std::string_view text) {
  return !text.empty() && text.size() < 100 &&
         text.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.+!-_") ==
             std::string_view::npos;
}

bool is_identifier(std::string_view text) {
  return !text.empty() && text.size() < 100 && !(text[0] >= '0' && text[0] <= '9') &&
         text.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") ==
             std::string_view::npos;
}

constexpr std::array<std::string_view, 8> kBeside{"test", "tests",    "testing", "docs",
                                                  "doc",  "examples", "example", "benchmarks"};

bool is_beside_the_point(std::string_view module) {
  return module.starts_with('_') || std::find(kBeside.begin(), kBeside.end(), module) != kBeside.end();
}

// "pandas/io/x.py,sha256=…,123" → pandas; "six.py" → six; "x.cpython-311-x86_64-linux-gnu.so" → x.
std::optional<std::string> module_of_path(std::string_view path) {
  if (path.starts_with('"') || path.starts_with('.') || path.starts_with('/')) return std::nullopt;
  const bool python = path.ends_with(".py"), native = path.ends_with(".so");
  if (!python && !native) return std::nullopt;
  const std::size_t end = path.find_first_of("/.");
  const std::string_view first = path.substr(0, end);
  if (!is_identifier(first)) return std::nullopt;
  // "numpy.libs/x.so" is a folder that nobody imports; "x.abi3.so" is a module.
  if (path[end] == '.' && path.find('/') != std::string_view::npos) return std::nullopt;
  return std::string{first};
}

}  // namespace

std::vector<Package> packages_of_lock(std::string_view pylock) {
  std::vector<Package> packages;
  bool wheel = false;
  for (std::string_view line : sys::split(pylock, '\n')) {
    if (line == "[[packages]]") {
      if (packages.size() >= kMaxPackages) break;
      packages.emplace_back();
      wheel = false;
      continue;
    }
    if (packages.empty()) continue;
    Package& package = packages.back();
    if (line.starts_with("name = ")) {
      package.name = normalise_name(quoted_after(line, "name = \""));
    } else if (line.starts_with("version = ")) {
      const std::string_view version = quoted_after(line, "version = \"");
      if (is_version(version)) package.version = version;
    } else {
      // A wheel is taken before a source distribution; one that is listed alone was built here.
      const bool is_wheel = line.starts_with("wheels = ") || (line.starts_with("    {") && wheel);
      if (line.starts_with("wheels = ")) wheel = true;
      const std::string_view digest = quoted_after(line, "sha256 = \"");
      if (is_wheel) package.source = false;
      if (line.starts_with("sdist = ") && package.sha256.empty()) package.source = true;
      if (is_sha256(digest) && (package.sha256.empty() || is_wheel)) package.sha256 = digest;
    }
  }
  std::erase_if(packages, [](const Package& package) { return package.name.empty(); });
  return packages;
}

std::vector<std::string> modules_of(std::string_view top_level, std::string_view record) {
  std::set<std::string> found;
  for (std::string_view line : sys::split(top_level, '\n')) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (is_identifier(line) && found.size() < kMaxModules) found.emplace(line);
  }
  if (found.empty())
    for (std::string_view line : sys::split(record, '\n'))
      if (const auto module = module_of_path(line.substr(0, line.find(','))); module && found.size() < kMaxModules)
        found.insert(*module);
  std::vector<std::string> all{found.begin(), found.end()}, wanted = all;
  std::erase_if(wanted, is_beside_the_point);
  return wanted.empty() ? all : wanted;
}

}  // namespace pctx::env
