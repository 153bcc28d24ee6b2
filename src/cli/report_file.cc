#include "cli/report_file.h"

#include <fcntl.h>

#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx::cli {

Result<Fd> report_of_caller(const std::optional<std::string>& path) {
  constexpr std::string_view kOpened = "/dev/fd/";
  if (!path || !path->starts_with(kOpened)) return Fd{};
  int number = -1;
  const char* end = path->data() + path->size();
  const auto read = std::from_chars(path->data() + kOpened.size(), end, number);
  Fd opened{read.ec == std::errc{} && read.ptr == end ? ::fcntl(number, F_DUPFD_CLOEXEC, 3) : -1};
  if (!opened || (::fcntl(opened.get(), F_GETFL) & O_ACCMODE) == O_RDONLY)
    return usage_error(fmt::format("--report: {} is no descriptor that is open for writing", *path));
  return opened;
}

Result<Fd> open_report(const std::optional<std::string>& path, Fd opened) {
  if (!path || opened) return opened;
  return sys::open_at(AT_FDCWD, *path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NOCTTY, 0644);
}

}  // namespace pctx::cli
