#include "sys/apparmor.h"

#include <dirent.h>

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx::sys {
namespace {

std::string first_line(const std::string& path) {
  const std::string text = try_read_file(path).value_or("");
  return text.substr(0, text.find_first_of(std::string_view{"\n\0", 2}));
}

}  // namespace

bool kernel_has_apparmor() { return first_line("/sys/module/apparmor/parameters/enabled").starts_with('Y'); }

// The list of loaded profiles is root's to read; this directory is everyone's, and holds one entry "NAME.N" for each.
std::optional<std::string> profile_mode(std::string_view profile) {
  constexpr const char* kProfiles = "/sys/kernel/security/apparmor/policy/profiles";
  DIR* entries = ::opendir(kProfiles);
  if (entries == nullptr) return std::nullopt;
  std::optional<std::string> mode;
  while (const dirent* entry = ::readdir(entries)) {
    const std::string_view name = entry->d_name;
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || name.substr(0, dot) != profile) continue;
    const std::string text = first_line(fmt::format("{}/{}/mode", kProfiles, name));
    mode = text.empty() ? "unknown" : text;
  }
  ::closedir(entries);
  return mode;
}

std::string confining_profile(std::string_view label) {
  label = label.substr(0, label.find_first_of(std::string_view{"\n\0", 2}));
  if (label == "unconfined" || label.ends_with(" (unconfined)")) return "";
  if (label.ends_with(')'))
    if (const std::size_t mode = label.rfind(" ("); mode != std::string_view::npos) label = label.substr(0, mode);
  return std::string{label};
}

std::string own_profile() {
  std::string label = first_line("/proc/self/attr/apparmor/current");
  if (label.empty()) label = first_line("/proc/self/attr/current");
  return confining_profile(label);
}

}  // namespace pctx::sys
