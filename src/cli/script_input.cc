#include "cli/script_input.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "base/fd.h"
#include "env/script.h"
#include "sys/files.h"

namespace pctx::cli {
namespace {

Result<std::string> read_file_ahead() {
  const Fd again{::dup(STDIN_FILENO)};
  const off_t at = ::lseek(again.get(), 0, SEEK_CUR);
  auto text = sys::read_all(again.get(), env::kMaxScriptBytes);
  // The two share a position.
  if (::lseek(again.get(), at, SEEK_SET) != at) return os_error("the script on standard input cannot be read twice");
  return text ? std::move(text) : std::string{};
}

Error not_ended(Millis patience) {
  return usage_error("the script on standard input did not end within " + format_duration(patience) + " (--timeout)",
                     "end it, or give a longer --timeout; a command that reads its input stands behind --");
}

Result<std::string> read_to_end(Millis patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  std::string text;
  std::array<char, 65536> buffer;
  for (;;) {
    const auto left = std::chrono::ceil<Millis>(until - std::chrono::steady_clock::now());
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (patience.count() > 0 && left.count() <= 0) return not_ended(patience);
    constexpr std::int64_t kHour = 3'600'000;
    const auto wait = patience.count() > 0 ? std::min<std::int64_t>(left.count(), kHour) : kHour;
    // In vain where an hour is over, or a signal came: what is left of the time is looked at again.
    if (::poll(&input, 1, static_cast<int>(wait)) <= 0) continue;
    const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return os_error("the script on standard input cannot be read");
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > env::kMaxScriptBytes)
      return usage_error("the script on standard input is larger than " + format_size(env::kMaxScriptBytes),
                         "write it to a file; what it reads comes from other files, lent with --ro");
  }
}

}  // namespace

Result<std::string> script_on_input(Millis patience) {
  struct stat status {};
  if (::fstat(STDIN_FILENO, &status) != 0) return std::string{};
  if (S_ISREG(status.st_mode)) return read_file_ahead();
  if (!S_ISFIFO(status.st_mode) && !S_ISSOCK(status.st_mode)) return std::string{};
  std::string text = PCTX_TRY(read_to_end(patience));
  const Fd file{::memfd_create("script", MFD_CLOEXEC)};
  if (!file) return os_error("the script on standard input cannot be kept");
  PCTX_TRY(sys::write_all(file.get(), text));
  if (::lseek(file.get(), 0, SEEK_SET) != 0 || ::dup2(file.get(), STDIN_FILENO) < 0)
    return os_error("the script on standard input cannot be kept");
  return text;
}

}  // namespace pctx::cli
