#include "cli/closed_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/printable.h"

namespace pctx::cli {
namespace {

bool is_closed(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || status.st_uid != ::geteuid()) return false;
  const mode_t needed = S_ISDIR(status.st_mode) ? 05 : S_ISREG(status.st_mode) ? 04 : 0;
  return (status.st_mode & needed) != needed;
}

}  // namespace

std::optional<Error> closed_to_guest(std::span<const Bind> lent, const Plan& plan) {
  if (!plan.ids.by_helper) return std::nullopt;
  int looked_at = 0;
  for (const Bind& bind : lent) {
    if (bind.writable) continue;
    constexpr int kMost = 5000;  // entries: a run has failed, and its caller waits
    std::error_code ended;
    constexpr auto kPassOver = std::filesystem::directory_options::skip_permission_denied;
    for (std::filesystem::recursive_directory_iterator at{bind.source, kPassOver, ended}, end;
         !ended && at != end && ++looked_at < kMost; at.increment(ended))
      if (is_closed(at->path()))
        return usage_error(
            fmt::format("{} is not for all to read, and the guest is not you", printable_path(at->path().string())),
            "if it failed for that: chmod -R o+rX there, or lend it with --rw");
  }
  return std::nullopt;
}

}  // namespace pctx::cli
