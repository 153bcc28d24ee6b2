// Which folders of the host the container has at their own path. A bind holds the folder itself, not its name: one that
// was made anew since is another, which the container lacks.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "backend/podman/podman.h"
#include "sys/files.h"

namespace pctx::backend::podman {
namespace {

// Each is an argument and a mount; those that nobody has asked for longest go first.
constexpr std::size_t kMostFolders = 64;

bool is_the_same(const LentFolder& folder) {
  struct stat status {};
  return ::stat(folder.path.c_str(), &status) == 0 && status.st_dev == folder.device && status.st_ino == folder.inode;
}

}  // namespace

std::vector<LentFolder> read_folders(std::string_view note) {
  std::vector<LentFolder> folders;
  for (std::string_view line : sys::split(note, '\n')) {
    LentFolder folder;
    const std::size_t first = line.find(' '), second = first == line.npos ? first : line.find(' ', first + 1);
    if (second == line.npos) continue;
    std::from_chars(line.data(), line.data() + first, folder.device);
    std::from_chars(line.data() + first + 1, line.data() + second, folder.inode);
    folder.path = line.substr(second + 1);
    folders.push_back(std::move(folder));
  }
  return folders;
}

std::string write_folders(const std::vector<LentFolder>& folders) {
  std::string note;
  for (const LentFolder& each : folders) note += fmt::format("{} {} {}\n", each.device, each.inode, each.path);
  return note;
}

bool has_folder(const std::vector<LentFolder>& folders, const std::vector<HostPath>& system,
                const std::string& wanted) {
  const auto of_the_system = [&](const HostPath& each) {
    return each.kind == PathKind::directory && sys::is_at_or_inside(wanted, each.path);
  };
  return std::any_of(system.begin(), system.end(), of_the_system) ||
         std::any_of(folders.begin(), folders.end(), [&](const LentFolder& each) {
           return sys::is_at_or_inside(wanted, each.path) && is_the_same(each);
         });
}

Result<std::vector<LentFolder>> folders_to_lend(std::vector<LentFolder> folders, const std::vector<HostPath>& system,
                                                const std::vector<std::string>& wanted) {
  // What earlier callers needed stays, as it is now: the container is theirs too.
  std::erase_if(folders, [](LentFolder& each) {
    struct stat status {};
    const bool gone = ::access(each.path.c_str(), R_OK) != 0 || ::stat(each.path.c_str(), &status) != 0;
    each.device = status.st_dev;
    each.inode = status.st_ino;
    return gone;
  });
  for (const std::string& path : wanted) {
    if (has_folder(folders, system, path)) continue;
    if (!path.starts_with('/') || path == "/" || path.find_first_of(":,\n") != std::string::npos)
      return usage_error(fmt::format("{} cannot be lent to the container: its name", path),
                         "use a folder whose path has no colon, comma or line end");
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return os_error(fmt::format("{} cannot be lent to the container", path));
    std::erase_if(folders, [&](const LentFolder& each) { return sys::is_at_or_inside(each.path, path); });
    folders.push_back({path, status.st_dev, status.st_ino});
  }
  if (folders.size() > kMostFolders) folders.erase(folders.begin(), folders.end() - kMostFolders);
  return folders;
}

}  // namespace pctx::backend::podman
