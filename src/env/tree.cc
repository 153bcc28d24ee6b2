#include "env/tree.h"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <memory>

#include <fmt/format.h>

#include "base/printable.h"
#include "env/share.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx::env {
namespace {

constexpr int kDeepest = 100;  // folders; real packages stay below 20
constexpr std::uint64_t kMostEntries = 2'000'000;

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// The names in the folder `fd`, which is left as it is.
Result<std::vector<std::string>> names_in(int fd) {
  const int copy = ::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::unique_ptr<DIR, CloseFolder> folder{copy >= 0 ? ::fdopendir(copy) : nullptr};
  if (!folder) return os_error("cannot list a folder of an Environment");
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder.get()))
    if (const std::string_view name = entry->d_name; name != "." && name != "..") names.emplace_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Result<Fd> open_folder(int parent, const std::string& name) {
  return sys::open_at(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

// A folder that its owner may not enter yet. Never through a link: fchmodat follows them.
Result<Fd> open_closed_folder(int parent, const std::string& name) {
  auto fd = open_folder(parent, name);
  struct stat status {};
  if (fd || ::fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(status.st_mode)) return fd;
  if (::fchmodat(parent, name.c_str(), 0700, 0) != 0) return os_error("cannot open a folder of an Environment");
  return open_folder(parent, name);
}

Result<void> walk_folder(int folder, const std::string& path, int depth, std::uint64_t& seen, const Visit& visit,
                         bool open_closed) {
  if (depth > kDeepest) return unavailable("the packages left folders that are too deep", "choose other packages");
  for (const std::string& name : PCTX_TRY(names_in(folder))) {
    struct stat status {};
    if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;  // a build goes on while it is measured
      return os_error("cannot look at a file of an Environment");
    }
    if (++seen > kMostEntries)
      return unavailable("the packages left more than 2,000,000 files", "choose other packages");
    const std::string below = path.empty() ? name : sys::join(path, name);
    if (S_ISDIR(status.st_mode)) {
      const auto child = open_closed ? open_closed_folder(folder, name) : open_folder(folder, name);
      if (!child && child.error().code == ENOENT) continue;
      if (!child) return child.error();
      PCTX_TRY(walk_folder(child->get(), below, depth + 1, seen, visit, open_closed));
    }
    PCTX_TRY(visit(folder, name, below, status));
  }
  return {};
}

std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 >= text.size()) {
      result += text[i];
    } else if (text[i + 1] == 'x' && i + 3 < text.size()) {
      result += static_cast<char>(std::strtoul(std::string{text.substr(i + 2, 2)}.c_str(), nullptr, 16));
      i += 3;
    } else {
      result += text[++i];
    }
  }
  return result;
}

std::string link_target(int folder, const std::string& name) {
  std::string buffer(4096, '\0');
  const ssize_t length = ::readlinkat(folder, name.c_str(), buffer.data(), buffer.size());
  buffer.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return buffer;
}

std::string folder_line(const std::string& path, const struct stat& status) {
  return fmt::format("D {}.{:09} {}\n", status.st_mtim.tv_sec, status.st_mtim.tv_nsec, manifest_path(path));
}

std::string other_line(int folder, const std::string& name, const std::string& path, const struct stat& status) {
  if (S_ISLNK(status.st_mode))
    return fmt::format("L {} {}\n", manifest_path(link_target(folder, name)), manifest_path(path));
  return fmt::format("F {} {}\n", status.st_size, manifest_path(path));
}

Result<void> empty_folder(int top, int folder, int depth, std::uint64_t& moved) {
  (void)::fchmod(folder, 0700);
  for (const std::string& name : PCTX_TRY(names_in(folder))) {
    if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) continue;
    const Fd child = PCTX_TRY(open_closed_folder(folder, name));
    if (depth >= kDeepest) {
      // One descriptor per level: what is deeper is moved to the top and met again there.
      const std::string place = fmt::format(".deep-{}", moved++);
      (void)::fchmod(child.get(), 0700);  // or it could not be moved
      if (::renameat(folder, name.c_str(), top, place.c_str()) != 0) return os_error("cannot remove an Environment");
      continue;
    }
    PCTX_TRY(empty_folder(top, child.get(), depth + 1, moved));
    if (::unlinkat(folder, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
      return os_error("cannot remove an Environment");
  }
  return {};
}

}  // namespace

std::string manifest_path(std::string_view path) {
  std::string result;
  for (char c : printable_path(path)) result += c == ' ' ? std::string{"\\x20"} : std::string{c};
  return result;
}

Result<void> walk(int top, const Visit& visit, bool open_closed) {
  std::uint64_t seen = 0;
  return walk_folder(top, "", 0, seen, visit, open_closed);
}

std::uint64_t measure(int top) {
  std::uint64_t bytes = 0;
  (void)walk(top, [&](int, const std::string&, const std::string&, const struct stat& status) -> Result<void> {
    // Files that the cache and the Environment share count once for each name: close enough for a limit.
    bytes += static_cast<std::uint64_t>(status.st_blocks) * 512 / std::max<std::uint64_t>(1, status.st_nlink);
    return {};
  });
  return bytes;
}

Result<void> remove_tree(int parent, const std::string& name) {
  if (::unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return {};
  const Fd top = PCTX_TRY(open_closed_folder(parent, name));
  std::uint64_t moved = 0;
  for (int attempt = 0;; ++attempt) {
    PCTX_TRY(empty_folder(top.get(), top.get(), 0, moved));
    if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
    // Deep folders were moved to the top, or a box that is being killed wrote its last file.
    if (attempt > 1000) return os_error(fmt::format("cannot remove {}", manifest_path(name)));
  }
}

std::optional<Sha256::Digest> sha256_of(int fd) {
  Sha256 hash;
  std::array<char, 65536> buffer;
  ssize_t got;
  while ((got = ::read(fd, buffer.data(), buffer.size())) > 0)
    hash.update({buffer.data(), static_cast<std::size_t>(got)});
  return got < 0 ? std::nullopt : std::optional{hash.finish()};
}

Result<Frozen> freeze(int top, int shared) {
  Frozen frozen;
  std::string others;
  const uid_t owner = ::geteuid();
  const gid_t group = ::getegid();
  PCTX_TRY(walk(
      top,
      [&](int folder, const std::string& name, const std::string& path, const struct stat& status) -> Result<void> {
        const bool directory = S_ISDIR(status.st_mode);
        if (!directory && !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode))
          return unavailable(
              fmt::format("the packages left {}, which is neither a file nor a folder", manifest_path(path)),
              "choose other packages");
        if (status.st_uid != owner && ::fchownat(folder, name.c_str(), owner, group, AT_SYMLINK_NOFOLLOW) != 0)
          return os_error("cannot take over a file of an Environment");
        if (!S_ISLNK(status.st_mode)) {
          const mode_t mode = directory || (status.st_mode & 0100) != 0 ? 0555 : 0444;
          if (::fchmodat(folder, name.c_str(), mode, 0) != 0) return os_error("cannot freeze a file of an Environment");
        }
        if (directory) {
          ++frozen.size.folders;
          struct stat now {};  // sharing what is in it has changed its time
          if (::fstatat(folder, name.c_str(), &now, AT_SYMLINK_NOFOLLOW) != 0)
            return os_error("cannot look at a folder of an Environment");
          frozen.manifest += folder_line(path, now);
        } else {
          ++frozen.size.files;
          frozen.size.bytes += static_cast<std::uint64_t>(status.st_size);
          others += other_line(folder, name, path, status);
          if (shared >= 0 && S_ISREG(status.st_mode)) share_file(folder, name, status, shared);
        }
        return {};
      },
      true));
  frozen.manifest += others;
  return frozen;
}

bool folders_are_unchanged(int top, std::string_view manifest, std::uint64_t expected_folders) {
  std::uint64_t folders = 0;
  while (manifest.starts_with("D ")) {
    const std::size_t end = manifest.find('\n');
    if (end == std::string_view::npos) return false;
    const std::string_view line = manifest.substr(0, end + 1);
    manifest.remove_prefix(end + 1);
    const std::size_t blank = line.find(' ', 2);
    if (blank == std::string_view::npos) return false;
    const std::string path = unescaped(line.substr(blank + 1, line.size() - blank - 2));
    struct stat status {};
    if (::fstatat(top, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(status.st_mode) ||
        folder_line(path, status) != line)
      return false;
    ++folders;
  }
  return folders == expected_folders && !manifest.empty();
}

std::string read_below(int top, const std::string& path, std::size_t limit) {
  std::string folder_path = path;
  Fd folder{::fcntl(top, F_DUPFD_CLOEXEC, 3)};
  for (std::size_t slash; (slash = folder_path.find('/')) != std::string::npos; folder_path.erase(0, slash + 1)) {
    auto next = open_folder(folder.get(), folder_path.substr(0, slash));
    if (!next) return "";
    folder = *std::move(next);
  }
  const auto file = sys::open_at(folder.get(), folder_path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  struct stat status {};
  if (!file || ::fstat(file->get(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  auto text = sys::read_all(file->get(), limit);
  return text ? *std::move(text) : "";
}

std::vector<std::string> names_below(int top, const std::string& path) {
  std::string rest = path + "/";
  Fd folder{::fcntl(top, F_DUPFD_CLOEXEC, 3)};
  for (std::size_t slash; (slash = rest.find('/')) != std::string::npos; rest.erase(0, slash + 1)) {
    auto next = open_folder(folder.get(), rest.substr(0, slash));
    if (!next) return {};
    folder = *std::move(next);
  }
  auto names = names_in(folder.get());
  return names ? *std::move(names) : std::vector<std::string>{};
}

}  // namespace pctx::env
