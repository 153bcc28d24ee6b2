#include "box/collect.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/fd.h"
#include "base/printable.h"

namespace pctx {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

FileTime to_file_time(const timespec& t) { return {t.tv_sec, t.tv_nsec}; }

FileTime now_by(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return to_file_time(now);
}

struct TypeRow {
  mode_t format;
  FileType type;
  const char* skip;  // why such an entry is never handed on
};
constexpr std::array<TypeRow, 7> kTypes{{
    {S_IFREG, FileType::regular, nullptr},
    {S_IFDIR, FileType::directory, nullptr},
    {S_IFLNK, FileType::symlink, "symbolic link"},
    {S_IFIFO, FileType::fifo, "FIFO"},
    {S_IFSOCK, FileType::socket, "socket"},
    {S_IFBLK, FileType::block_device, "block device"},
    {S_IFCHR, FileType::char_device, "character device"},
}};
constexpr TypeRow kUnknownType{0, FileType::unknown, "unknown kind of file"};

const TypeRow& type_row(mode_t mode) {
  const auto* row =
      std::find_if(kTypes.begin(), kTypes.end(), [mode](const TypeRow& r) { return r.format == (mode & S_IFMT); });
  return row == kTypes.end() ? kUnknownType : *row;
}

Unread to_unread(int code) {
  switch (code) {
    case EACCES:
    case EPERM:
      return Unread::denied;
    case EXDEV:
      return Unread::other_mount;
    case ELOOP:
    case ENOTDIR:
      return Unread::replaced;
    default:
      return Unread::failed;
  }
}

// Shortage of the host's own, as opposed to something about the entry.
bool is_shortage(int code) { return code == EMFILE || code == ENFILE || code == ENOMEM; }

}  // namespace

// Opens directories beneath a folder by their full relative path, so that a walk of any depth holds one descriptor.
class BeneathOpener {
 public:
  BeneathOpener(int folder, dev_t device) : folder_(folder), device_(device) {}

  // Empty and errno set on failure. A path longer than the kernel takes is resolved in pieces.
  Fd open(std::string_view path) {
    Fd base;
    while (path.size() >= PATH_MAX) {
      const std::size_t cut = path.rfind('/', PATH_MAX - 1);  // a component has at most 255 bytes: always found
      base = open_piece(base ? base.get() : folder_, path.substr(0, cut), O_PATH);
      if (!base) return base;
      path.remove_prefix(cut + 1);
    }
    return open_piece(base ? base.get() : folder_, path, O_RDONLY);
  }

 private:
  // O_DIRECTORY is checked before anything is opened: a FIFO does not block, a device does not react.
  static constexpr int kFlags = O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

  Fd open_piece(int at, std::string_view path, int access) {
    const std::string piece(path);
    if (has_openat2_) {
      open_how how{};
      how.flags = static_cast<std::uint64_t>(kFlags | access);
      how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
      const long fd = ::syscall(SYS_openat2, at, piece.c_str(), &how, sizeof how);
      if (fd >= 0) return Fd(static_cast<int>(fd));
      // EPERM is how container runtimes with old filters refuse a call they do not know.
      if (errno != ENOSYS && errno != EPERM) return Fd();
      has_openat2_ = false;
    }
    return open_by_component(at, piece, access);
  }

  Fd open_by_component(int at, const std::string& piece, int access) {
    Fd current;
    for (std::size_t begin = 0; begin <= piece.size();) {
      const std::size_t end = std::min(piece.find('/', begin), piece.size());
      const std::string component = piece.substr(begin, end - begin);
      const int how = end == piece.size() ? access : O_PATH;
      Fd next(::openat(current ? current.get() : at, component.c_str(), kFlags | how));
      struct stat st {};
      if (!next || ::fstat(next.get(), &st) != 0) return Fd();
      if (st.st_dev != device_) {
        errno = EXDEV;
        return Fd();
      }
      current = std::move(next);
      begin = end + 1;
    }
    return current;
  }

  int folder_;
  dev_t device_;
  bool has_openat2_ = true;
};

// Breadth first: the list of entries is itself the queue of directories to read, so the walk needs no further memory
// and no stack, and when a budget ends it the files near the top are the ones that are known.
class FolderWalk {
 public:
  FolderWalk(int folder, dev_t device, const CollectLimits& limits) : opener_(folder, device), limits_(limits) {}

  Result<FolderSnapshot> run() {
    snapshot_.root_unread_ = PCTX_TRY(read_directory("", 0));
    if (snapshot_.root_unread_ != Unread::no) ++snapshot_.gaps_;
    for (std::size_t next = 0; next < snapshot_.entries_.size() && !snapshot_.stopped_; ++next) {
      if (snapshot_.entries_[next].type != FileType::directory) continue;
      const std::string path = snapshot_.entries_[next].path;  // a copy: reading moves the entries
      const auto depth = static_cast<std::size_t>(std::count(path.begin(), path.end(), '/')) + 1;
      const Unread unread = PCTX_TRY(read_directory(path, depth));
      snapshot_.entries_[next].unread = unread;
      if (unread != Unread::no) ++snapshot_.gaps_;
    }
    std::sort(snapshot_.entries_.begin(), snapshot_.entries_.end(),
              [](const FolderEntry& a, const FolderEntry& b) { return a.path < b.path; });
    // Not the coarse clock: since Linux 6.13 a file's time may be ahead of it, never of this one.
    snapshot_.taken_ = now_by(CLOCK_REALTIME);
    return std::move(snapshot_);
  }

 private:
  Result<Unread> read_directory(const std::string& path, std::size_t depth) {
    if (depth >= limits_.max_depth) {
      snapshot_.truncated_reason_ = fmt::format("deeper than {} levels", limits_.max_depth);
      return Unread::too_deep;
    }
    Fd fd = opener_.open(path.empty() ? "." : path);
    if (!fd) return failure(path);
    const Directory directory(::fdopendir(fd.get()));
    if (!directory) return failure(path);
    const int borrowed = fd.release();  // the stream owns it now
    while (!snapshot_.stopped_) {
      errno = 0;
      const dirent* found = ::readdir(directory.get());
      if (found == nullptr) return errno == 0 ? Result<Unread>(Unread::no) : failure(path);
      const std::string_view name = found->d_name;
      if (name != "." && name != "..") inspect(borrowed, path, found->d_name);
    }
    return Unread::no;
  }

  static Result<Unread> failure(const std::string& path) {
    const int code = errno;
    if (is_shortage(code)) return os_error("cannot read directory '" + printable_path(path) + "'", code);
    if (code == ENOENT) return Unread::no;  // gone since it was listed, and so is all that was in it
    return to_unread(code);
  }

  void inspect(int directory, const std::string& parent, const char* name) {
    struct stat st {};
    FolderEntry entry;
    if (::fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0) {
      entry.type = type_row(st.st_mode).type;
      entry.mode = st.st_mode;
      entry.links = st.st_nlink;
      entry.size = static_cast<std::uint64_t>(st.st_size);
      entry.mtime = to_file_time(st.st_mtim);
      entry.ctime = to_file_time(st.st_ctim);
      entry.inode = st.st_ino;
      entry.device = st.st_dev;
    } else if (errno == ENOENT) {
      return;
    } else {
      entry.unread = to_unread(errno);
    }
    entry.path = parent.empty() ? name : parent + '/' + name;
    add(std::move(entry));
  }

  void add(FolderEntry entry) {
    if (snapshot_.entries_.size() >= limits_.max_entries) {
      return stop(fmt::format("more than {} entries", limits_.max_entries));
    }
    if (entry.path.size() > limits_.max_path_bytes - path_bytes_) {
      return stop(fmt::format("more than {} of paths", format_size(limits_.max_path_bytes)));
    }
    path_bytes_ += entry.path.size();
    if (entry.unread != Unread::no) ++snapshot_.gaps_;
    snapshot_.newest_ctime_ = std::max(snapshot_.newest_ctime_, entry.ctime);
    snapshot_.entries_.push_back(std::move(entry));
  }

  void stop(std::string reason) {
    snapshot_.stopped_ = true;
    snapshot_.truncated_reason_ = std::move(reason);
  }

  BeneathOpener opener_;
  CollectLimits limits_;
  FolderSnapshot snapshot_;
  std::size_t path_bytes_ = 0;
};

Result<FolderSnapshot> take_snapshot(int folder, const CollectLimits& limits) {
  struct stat st {};
  if (::fstat(folder, &st) != 0) return os_error("cannot inspect the folder whose changes are to be listed");
  if (!S_ISDIR(st.st_mode)) return os_error("cannot list changes of something that is not a folder", ENOTDIR);
  return FolderWalk(folder, st.st_dev, limits).run();
}

const FolderEntry* FolderSnapshot::find(std::string_view path) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), path,
                                      [](const FolderEntry& entry, std::string_view p) { return entry.path < p; });
  return found != entries_.end() && found->path == path ? &*found : nullptr;
}

bool FolderSnapshot::covers(std::string_view path) const {
  if (complete()) return true;
  if (stopped_ || root_unread_ != Unread::no) return false;
  for (std::size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
    const FolderEntry* ancestor = find(path.substr(0, slash));
    if (ancestor == nullptr) return true;  // not there, and its own directory was read
    if (ancestor->unread != Unread::no) return false;
  }
  return true;
}

void await_clock_tick(const FolderSnapshot& before) {
  // What a partial snapshot did not see is told apart by the time of the snapshot.
  const FileTime newest = before.complete() ? before.newest_change() : std::max(before.newest_change(), before.taken());
  timespec tick{};
  ::clock_getres(CLOCK_REALTIME_COARSE, &tick);
  // A write is stamped with the coarse clock or later. Bounded, since a file may carry a time far in the future (a
  // clock that was set back).
  for (int ticks = 0; ticks < 3 && now_by(CLOCK_REALTIME_COARSE) <= newest; ++ticks) ::nanosleep(&tick, nullptr);
}

namespace {

const char* unread_reason(Unread unread) {
  switch (unread) {
    case Unread::no:
      return nullptr;
    case Unread::denied:
      return "cannot be read: permission denied";
    case Unread::other_mount:
      return "is another file system";
    case Unread::too_deep:
      return "too many levels deep";
    case Unread::replaced:
      return "was replaced while being read";
    case Unread::failed:
      break;
  }
  return "cannot be read";
}

const char* skip_reason(const FolderEntry& entry) {
  if (entry.type != FileType::regular) return type_row(entry.mode).skip;
  if ((entry.mode & (S_ISUID | S_ISGID)) != 0) return "set-id file";
  return entry.links > 1 ? "has further hard links" : nullptr;
}

// The mode includes the type.
bool same_state(const FolderEntry& a, const FolderEntry& b) {
  return a.mode == b.mode && a.size == b.size && a.inode == b.inode && a.device == b.device && a.mtime == b.mtime &&
         a.ctime == b.ctime;
}

// Sorts one entry of `after` into the lists; `old` is what `before` has under the same path, if anything.
void judge_entry(const FolderEntry* old, const FolderEntry& entry, const FolderSnapshot& before,
                 FolderChanges& changes) {
  if (const char* reason = unread_reason(entry.unread)) changes.skipped.push_back({entry.path, reason});
  if (entry.type == FileType::unknown) return;  // it may still be the file that was there
  const bool was_file = old != nullptr && old->type == FileType::regular;
  if (was_file && entry.type != FileType::regular) changes.deleted.push_back(entry.path);
  if (entry.type == FileType::directory) return;

  const bool known = old == nullptr ? before.covers(entry.path) : old->type != FileType::unknown;
  const bool unchanged = known ? old != nullptr && same_state(*old, entry) : entry.ctime <= before.taken();
  if (unchanged) return;
  if (const char* reason = skip_reason(entry)) {
    changes.skipped.push_back({entry.path, reason});
  } else if (was_file || !known) {
    changes.modified.push_back(entry.path);
  } else {
    changes.created.push_back(entry.path);
  }
}

void explain_truncation(const FolderSnapshot& snapshot, std::string_view when, FolderChanges& changes) {
  if (!snapshot.truncated()) return;
  changes.truncated = true;
  if (!changes.truncated_reason.empty()) changes.truncated_reason += "; ";
  changes.truncated_reason += fmt::format("{} the run: {}", when, snapshot.truncated_reason());
}

}  // namespace

FolderChanges diff(const FolderSnapshot& before, const FolderSnapshot& after) {
  FolderChanges changes;
  explain_truncation(before, "before", changes);
  explain_truncation(after, "after", changes);
  if (const char* reason = unread_reason(after.root_unread())) changes.skipped.push_back({".", reason});
  auto old = before.entries().begin();
  auto entry = after.entries().begin();
  while (old != before.entries().end() || entry != after.entries().end()) {
    const bool only_before =
        entry == after.entries().end() || (old != before.entries().end() && old->path < entry->path);
    if (only_before) {
      if (old->type == FileType::regular && after.covers(old->path)) changes.deleted.push_back(old->path);
      ++old;
      continue;
    }
    const bool both = old != before.entries().end() && old->path == entry->path;
    judge_entry(both ? &*old : nullptr, *entry, before, changes);
    if (both) ++old;
    ++entry;
  }
  return changes;
}

}  // namespace pctx
