#include "sys/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "sys/kernel_abi.h"

namespace pctx::sys {

Result<Fd> open_at(int dir, const std::string& path, int flags, unsigned mode) {
  Fd fd{::openat(dir, path.c_str(), flags | O_CLOEXEC, mode)};
  if (!fd) return os_error(fmt::format("cannot open {}", path));
  return fd;
}

Result<std::string> read_all(int fd, std::size_t limit) {
  std::string text;
  std::array<char, 16384> buffer;
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("cannot read");
    if (got == 0) return text;
    if (text.size() + static_cast<std::size_t>(got) > limit)
      return usage_error(fmt::format("the input is larger than {} bytes", limit), "name another file");
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

Result<std::string> read_file(const std::string& path, std::size_t limit) {
  const Fd fd = PCTX_TRY(open_at(AT_FDCWD, path, O_RDONLY | O_NOCTTY));
  return named(path, read_all(fd.get(), limit));
}

Error about_path(const std::string& option, Error error) {
  error.kind = ErrorKind::usage;
  error = named(option, std::move(error));
  if (error.hint.empty()) switch (error.code) {
      case ENOENT:
      case ENOTDIR:
        error.hint = "check the spelling, or make it first; a relative path starts at the folder that you are in";
        break;
      case EACCES:
      case EPERM:
        error.hint = "this user has no right to it: name another path, or change the rights there";
        break;
      default:
        error.hint = "name another path";
    }
  return error;
}

Result<std::string> read_named(const std::string& option, const std::string& path, std::size_t limit) {
  auto text = read_file(path, limit);
  if (text) return text;
  return about_path(option, std::move(text).error());
}

Fd open_regular(const std::string& path, int flags) {
  const Fd found{::open(path.c_str(), O_PATH | O_CLOEXEC | flags)};
  struct stat status {};
  if (!found || ::fstat(found.get(), &status) != 0 || !S_ISREG(status.st_mode)) return Fd{};
  const std::string self = fmt::format("/proc/self/fd/{}", found.get());
  return Fd{::open(self.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
}

std::optional<std::string> try_read_file(const std::string& path, std::size_t limit, int dir) {
  // Never waiting: for who writes to a FIFO, which a guest may have made of a file, or for who has a lease on it.
  const Fd fd{::openat(dir, path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
  if (!fd) return std::nullopt;
  auto text = read_all(fd.get(), limit);
  if (!text) return std::nullopt;
  return *std::move(text);
}

Result<void> write_at(int dir, const std::string& path, std::string_view text) {
  const Fd fd = PCTX_TRY(open_at(dir, path, O_WRONLY));
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return os_error(fmt::format("cannot write '{}' to {}", text, path));
  return {};
}

Result<void> write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return os_error("cannot write");
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

Result<Pipe> make_pipe(int flags) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | flags) != 0) return os_error("cannot make a pipe");
  return Pipe{Fd{ends[0]}, Fd{ends[1]}};
}

Result<Pipe> make_guest_pipe(mode_t mode) {
  Pipe pipe = PCTX_TRY(make_pipe());
  if (::fchmod(pipe.read_end.get(), mode) != 0) return os_error("cannot open a pipe to the guest");
  return pipe;
}

void close_all_but(std::span<const int> kept) noexcept {
  unsigned next = 0;
  for (const int number : kept) {
    const auto fd = static_cast<unsigned>(number);
    if (fd > next) (void)abi::close_range(next, fd - 1, 0);
    next = fd + 1;
  }
  (void)abi::close_range(next, ~0U, 0);
}

std::string join(std::string_view directory, std::string_view name) {
  std::string path{directory};
  if (!path.empty() && path.back() != '/') path += '/';
  path += name;
  return path;
}

bool has_word(std::string_view text, std::string_view word) {
  for (std::string_view candidate : split(text.substr(0, text.find('\n')), ' '))
    if (candidate == word) return true;
  return false;
}

bool is_inside(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && path.size() > folder.size() && path[folder.size()] == '/';
}

bool is_at_or_inside(std::string_view path, std::string_view folder) {
  return path == folder || is_inside(path, folder);
}

std::string resolved(const std::string& path) {
  std::array<char, PATH_MAX> buffer;
  return ::realpath(path.c_str(), buffer.data()) != nullptr ? std::string{buffer.data()} : std::string{};
}

bool leads_through(const std::string& path, const std::string& folder) {
  constexpr int kMostLinks = 40;  // the kernel's own bound
  std::string at = path.starts_with('/') ? "/" : resolved("."), left = path;
  for (int links = 0; !left.empty() && links <= kMostLinks;) {
    const std::size_t end = std::min(left.find('/'), left.size());
    const std::string name = left.substr(0, end);
    left.erase(0, end + 1);
    if (name.empty() || name == ".") continue;
    if (name == "..") {
      at.resize(std::max<std::size_t>(at.rfind('/'), 1));
      continue;
    }
    if (is_at_or_inside(at, folder)) return true;
    std::array<char, PATH_MAX> target;
    const std::string next = join(at, name);
    const ssize_t size = ::readlink(next.c_str(), target.data(), target.size());
    if (size <= 0) {
      at = next;
      continue;
    }
    ++links;
    if (target[0] == '/') at = "/";
    left = fmt::format("{}/{}", std::string_view{target.data(), static_cast<std::size_t>(size)}, left);
  }
  return false;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

}  // namespace pctx::sys
