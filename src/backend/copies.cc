#include "backend/copies.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstring>

#include <fmt/format.h>

#include "base/printable.h"
#include "env/tree.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx::backend {
namespace {

constexpr mode_t kPermissions = 0777;

// Below `top`, on its own mount, through no link at all.
Result<Fd> open_below(int top, const std::string& path, int flags, mode_t mode = 0) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC | O_NOFOLLOW);
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  Fd fd{abi::openat2(top, path.c_str(), how)};
  if (!fd) return os_error(fmt::format("cannot open {}", printable_path(path)));
  return fd;
}

std::pair<std::string, std::string> split_path(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::pair{std::string{"."}, path}
                                    : std::pair{path.substr(0, slash), path.substr(slash + 1)};
}

Result<Fd> open_parent(int top, const std::string& path) {
  return open_below(top, split_path(path).first, O_PATH | O_DIRECTORY);
}

Result<void> copy_bytes(int from, int to, const std::string& path) {
  for (;;) {
    const ssize_t got = ::sendfile(to, from, nullptr, 1 << 20);
    if (got == 0) return {};
    if (got < 0 && errno != EINTR) return os_error(fmt::format("cannot copy {}", printable_path(path)));
  }
}

Result<void> give_to(int fd, uid_t uid, gid_t gid, mode_t mode) {
  if (::geteuid() == 0 && ::fchown(fd, uid, gid) != 0) return os_error("cannot change a copy's owner");
  if (::fchmod(fd, mode & kPermissions) != 0) return os_error("cannot change a copy's mode");
  return {};
}

Result<void> copy_entry(int from, int to, const FolderEntry& entry, uid_t uid, gid_t gid) {
  const Fd parent = PCTX_TRY(open_parent(to, entry.path));
  const std::string name = split_path(entry.path).second;
  if (entry.type == FileType::directory) {
    if (::mkdirat(parent.get(), name.c_str(), 0700) != 0) return os_error("cannot make a folder of the copy");
    const Fd made = PCTX_TRY(open_below(parent.get(), name, O_RDONLY | O_DIRECTORY));
    return give_to(made.get(), uid, gid, entry.mode | 0700);
  }
  if (entry.type == FileType::symlink) {
    const Fd source = PCTX_TRY(open_parent(from, entry.path));
    std::string target(PATH_MAX, '\0');
    const ssize_t length = ::readlinkat(source.get(), name.c_str(), target.data(), target.size());
    if (length <= 0) return {};
    target.resize(static_cast<std::size_t>(length));
    return ::symlinkat(target.c_str(), parent.get(), name.c_str()) == 0 ? Result<void>{}
                                                                        : os_error("cannot make a link of the copy");
  }
  if (entry.type != FileType::regular) return {};  // sockets, devices and pipes are never lent
  const Fd source = PCTX_TRY(open_below(from, entry.path, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  const Fd made = PCTX_TRY(open_below(parent.get(), name, O_WRONLY | O_CREAT | O_EXCL, 0600));
  PCTX_TRY(copy_bytes(source.get(), made.get(), entry.path));
  return give_to(made.get(), uid, gid, entry.mode | 0600);
}

Result<void> empty_folder(int folder) {
  for (const std::string& name : env::names_below(folder, ".")) PCTX_TRY(env::remove_tree(folder, name));
  return {};
}

// Afterwards the copy is emptied: nothing of anybody else's may be in it.
Result<void> check_place(const std::string& host, const std::string& copy, int folder) {
  const std::string from = sys::resolved(host), to = sys::resolved(copy);
  if (sys::is_at_or_inside(from, to) || sys::is_at_or_inside(to, from))
    return usage_error(fmt::format("{} cannot be copied to {}: one is in the other", host, copy),
                       "name a place outside of it for the copy");
  if (env::names_below(folder, ".").empty()) return {};
  return usage_error(fmt::format("{}: the folder for the copy is not empty", copy),
                     "name an empty one, or a place where nothing is yet");
}

// Under another name first, so that nobody ever sees half of it; a link in its place is replaced, not followed.
Result<void> bring_file(int from, int to, const std::string& path, const struct stat& owner) {
  const Fd source = PCTX_TRY(open_below(from, path, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (::fstat(source.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return os_error(fmt::format("{} is no file any more", printable_path(path)), EINVAL);
  const Fd parent = PCTX_TRY(open_parent(to, path));
  const std::string name = split_path(path).second, fresh = fmt::format(".pctx-{}", ::getpid());
  const Fd made = PCTX_TRY(open_below(parent.get(), fresh, O_WRONLY | O_CREAT | O_EXCL, 0600));
  auto copied = copy_bytes(source.get(), made.get(), path);
  if (copied) copied = give_to(made.get(), owner.st_uid, owner.st_gid, status.st_mode);
  if (copied && ::renameat(parent.get(), fresh.c_str(), parent.get(), name.c_str()) == 0) return {};
  const Error error = copied ? os_error(fmt::format("cannot write {}", printable_path(path))) : copied.error();
  (void)::unlinkat(parent.get(), fresh.c_str(), 0);
  return error;
}

}  // namespace

Result<FolderCopy> FolderCopy::make(const std::string& host, const std::string& copy, uid_t uid, gid_t gid) {
  Fd from = PCTX_TRY(sys::open_at(AT_FDCWD, host, O_RDONLY | O_DIRECTORY));
  (void)::mkdir(copy.c_str(), 0700);
  Fd to = PCTX_TRY(sys::open_at(AT_FDCWD, copy, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  PCTX_TRY(check_place(host, copy, to.get()));
  PCTX_TRY(give_to(to.get(), uid, gid, 0700));
  const FolderSnapshot whole = PCTX_TRY(take_snapshot(from.get(), {}));
  if (!whole.complete())
    return unavailable(fmt::format("{} cannot be copied as a whole: {}", host,
                                   whole.truncated() ? whole.truncated_reason() : "a folder in it cannot be read"),
                       "lend a smaller folder, or use the backend 'namespaces', which lends it as it is");
  for (const FolderEntry& entry : whole.entries()) PCTX_TRY(copy_entry(from.get(), to.get(), entry, uid, gid));
  FolderSnapshot before = PCTX_TRY(take_snapshot(to.get(), {}));
  await_clock_tick(before);
  return FolderCopy{std::move(from), std::move(to), std::move(before)};
}

Result<FolderChanges> FolderCopy::bring_back() {
  const FolderSnapshot after = PCTX_TRY(take_snapshot(copy_.get(), {}));
  FolderChanges changes = diff(before_, after);
  struct stat owner {};
  if (::fstat(host_.get(), &owner) != 0) return os_error("the lent folder is gone");
  std::string left_out;
  for (const FolderEntry& entry : after.entries()) {
    if (entry.type != FileType::directory || before_.find(entry.path) != nullptr) continue;
    const auto parent = open_parent(host_.get(), entry.path);
    if (!parent) {  // a path that no call takes, or a link of the host's where the guest has a folder
      if (left_out.empty() || !entry.path.starts_with(left_out + "/")) {
        left_out = entry.path;
        changes.skipped.push_back({entry.path, fmt::format("cannot be made: {}", std::strerror(parent.error().code))});
      }
      continue;
    }
    const std::string name = split_path(entry.path).second;
    if (::mkdirat(parent->get(), name.c_str(), 0755) == 0 && ::geteuid() == 0)
      (void)!::fchownat(parent->get(), name.c_str(), owner.st_uid, owner.st_gid, AT_SYMLINK_NOFOLLOW);
  }
  for (auto* list : {&changes.created, &changes.modified})
    std::erase_if(*list, [&](const std::string& path) {
      const auto brought = bring_file(copy_.get(), host_.get(), path, owner);
      if (!brought) changes.skipped.push_back({path, brought.error().what});
      return !brought;
    });
  for (const std::string& path : changes.deleted)
    if (const auto parent = open_parent(host_.get(), path))
      (void)::unlinkat(parent->get(), split_path(path).second.c_str(), 0);
  // Deepest first; one that somebody else has put something into stays.
  const auto& known = before_.entries();
  for (auto entry = known.rbegin(); entry != known.rend(); ++entry)
    if (entry->type == FileType::directory && after.find(entry->path) == nullptr && after.covers(entry->path))
      if (const auto parent = open_parent(host_.get(), entry->path))
        (void)::unlinkat(parent->get(), split_path(entry->path).second.c_str(), AT_REMOVEDIR);
  return changes;
}

Result<void> FolderCopy::empty() { return empty_folder(copy_.get()); }

Result<void> copy_file(const std::string& host, const std::string& copy, uid_t uid, gid_t gid) {
  const Fd from = PCTX_TRY(sys::open_at(AT_FDCWD, host, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  const Fd to = PCTX_TRY(sys::open_at(AT_FDCWD, copy, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  PCTX_TRY(copy_bytes(from.get(), to.get(), host));
  struct stat status {};
  if (::fstat(from.get(), &status) != 0) return os_error(fmt::format("cannot read {}", host));
  return give_to(to.get(), uid, gid, status.st_mode | 0600);
}

}  // namespace pctx::backend
