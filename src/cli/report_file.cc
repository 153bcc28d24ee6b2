#include "cli/report_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "base/print.h"
#include "box/receipt.h"
#include "cli/options.h"
#include "launch/lend.h"
#include "sys/files.h"

namespace pctx::cli {

namespace {

Result<Fd> opened_by_caller(const std::string& path, std::string_view digits) {
  int number = -1;
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, number);
  Fd opened{read.ec == std::errc{} && read.ptr == end ? ::fcntl(number, F_DUPFD_CLOEXEC, 3) : -1};
  if (!opened || (::fcntl(opened.get(), F_GETFL) & O_ACCMODE) == O_RDONLY)
    return usage_error(fmt::format("--report: {} is no descriptor that is open for writing", path),
                       "open it first, as in: 3>report.json");
  return opened;
}

}  // namespace

Result<Fd> open_report(const std::optional<std::string>& path) {
  constexpr std::string_view kOpened = "/dev/fd/";
  if (!path) return Fd{};
  if (path->empty()) return usage_error("--report: the path is empty", "name a file to write to");
  if (*path == "-")
    return usage_error("--report: - is no file: standard output is the guest's",
                       "print the report with --json, or write ./- for a file of that name");
  if (path->starts_with(kOpened)) return opened_by_caller(*path, std::string_view{*path}.substr(kOpened.size()));
  auto file = sys::open_at(AT_FDCWD, *path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NOCTTY, 0644);
  if (file) return file;
  struct stat status {};
  if (::lstat(path->c_str(), &status) == 0 && S_ISLNK(status.st_mode))
    return usage_error(fmt::format("--report: {} is a link, and reports are not written through one", *path),
                       "name the file itself");
  return sys::about_path("--report", std::move(file).error());
}

Result<void> check_report(const Policy& policy, int report) {
  if (report < 0) return {};
  const std::string path = sys::resolved(fmt::format("/proc/self/fd/{}", report));
  for (const std::string& folder : lent_writable(policy))
    if (sys::is_at_or_inside(path, folder))
      return usage_error(fmt::format("--report: {} lies in {}, which is lent to be written", path, folder),
                         "the guest could put a report of its own there: name a file elsewhere");
  return {};
}

Result<void> write_report(int report, std::string_view json) {
  // Who opened it to append, or opened a pipe, has the say.
  const off_t start = ::lseek(report, 0, SEEK_CUR);
  if (start >= 0 && (::fcntl(report, F_GETFL) & O_APPEND) == 0) (void)!::ftruncate(report, start);
  return sys::write_all(report, fmt::format("{}\n", json));
}

void report_mistake(const std::vector<std::string>& options, const Error& error) {
  if (options.empty() || options[0] != "run") return;
  bool json = false;
  std::string path;
  for (std::size_t i = 1; i < options.size(); ++i) {
    const std::string_view word = options[i], name = word.substr(0, word.find('='));
    const auto takes_value = run_option(name);
    if (!takes_value) break;  // from here on nobody knows whose words they are
    std::string_view value;
    if (name.size() < word.size())
      value = word.substr(name.size() + 1);
    else if (*takes_value && i + 1 < options.size() && !options[i + 1].starts_with('-'))
      value = options[++i];
    if (name == "--json") json = true;
    if (name == "--report") path = value;
  }
  if (json) print_out("{}\n", error_json(error));
  if (path.empty()) return;
  if (const auto report = open_report(path)) (void)write_report(report->get(), error_json(error));
}

}  // namespace pctx::cli
