// What a run changed in a folder that the host lent it read-write (`/mnt`). The folder's content is hostile: nothing in
// it is followed, and nothing but directories is ever opened; the rest is known by stat alone. Everything goes by
// descriptor, beneath the folder, on its own mount. Budgets bound time and memory: what exceeds them makes the answer
// partial and says so, it is never an error.
//
//   FolderSnapshot before = PCTX_TRY(take_snapshot(folder, {}));
//   … prepare the box …
//   await_clock_tick(before);  // last thing before the guest may write
//   … the box runs, and is dead …
//   FolderSnapshot after = PCTX_TRY(take_snapshot(folder, {}));
//   FolderChanges changes = diff(before, after);
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace pctx {

struct CollectLimits {
  std::size_t max_entries = 100'000;
  std::size_t max_depth = 128;  // path components; a directory this deep is listed, but not looked into
  std::size_t max_path_bytes = 16_MiB;
};

// Seconds and nanoseconds apart: a guest sets any mtime, and 64-bit seconds do not fit in nanoseconds.
struct FileTime {
  std::int64_t seconds = 0;
  std::int64_t nanoseconds = 0;
  auto operator<=>(const FileTime&) const = default;
};

enum class FileType { regular, directory, symlink, fifo, socket, block_device, char_device, unknown };

// Why what lies below an entry is not known.
enum class Unread { no, denied, other_mount, too_deep, replaced, failed };

struct FolderEntry {
  std::string path;  // relative to the folder; any bytes but NUL
  FileType type = FileType::unknown;
  Unread unread = Unread::no;  // directories, and entries that could not be inspected
  mode_t mode = 0;
  nlink_t links = 0;
  std::uint64_t size = 0;
  FileTime mtime, ctime;
  ino_t inode = 0;
  dev_t device = 0;
};

class FolderSnapshot {
 public:
  const std::vector<FolderEntry>& entries() const& { return entries_; }  // sorted bytewise by path
  const std::vector<FolderEntry>& entries() && = delete;  // a loop over a temporary's entries would dangle
  const FolderEntry* find(std::string_view path) const;
  // Whether `path`, if it is not among the entries, certainly was not there.
  bool covers(std::string_view path) const;

  Unread root_unread() const { return root_unread_; }
  bool truncated() const { return !truncated_reason_.empty(); }
  const std::string& truncated_reason() const { return truncated_reason_; }
  bool complete() const { return !stopped_ && gaps_ == 0; }
  FileTime taken() const { return taken_; }                 // when the last look was over
  FileTime newest_change() const { return newest_ctime_; }  // greatest ctime seen

 private:
  friend class FolderWalk;

  std::vector<FolderEntry> entries_;
  Unread root_unread_ = Unread::no;
  bool stopped_ = false;  // a budget ended the walk: anything may be missing
  std::size_t gaps_ = 0;  // entries (or the folder itself) with unread != no
  std::string truncated_reason_;
  FileTime taken_, newest_ctime_;
};

struct SkippedPath {
  std::string path;  // "." is the folder itself
  std::string reason;
};

// Regular files only; directories show through the files in them. All lists are sorted bytewise by path and
// hold raw bytes: printable_path() of box/terminal.h makes them fit for JSON and messages.
struct FolderChanges {
  std::vector<std::string> created;
  std::vector<std::string> modified;
  std::vector<std::string> deleted;
  // New or changed, but not something to hand on: links, FIFOs, sockets, devices, set-id files, files with further hard
  // links. Also every directory that could not be looked into, changed or not.
  std::vector<SkippedPath> skipped;
  bool truncated = false;
  std::string truncated_reason;
};

// `folder` is borrowed; O_PATH suffices. An Error means that we failed (not a directory, out of descriptors).
Result<FolderSnapshot> take_snapshot(int folder, const CollectLimits& limits);

// Returns once a write would get a ctime that `before` has not seen: file times move in ticks of 1 to 10 ms (before
// Linux 6.13), so a file written twice within a tick keeps its ctime. At once for folders that have rested; at most
// three ticks.
void await_clock_tick(const FolderSnapshot& before);

// A file is modified when its size, mtime, ctime, inode or mode differs; the ctime cannot be forged with utime(). Where
// `before` is partial, a file that changed since but may have been there before is listed as modified; where `after` is
// partial, a file that may still be there is not listed as deleted.
FolderChanges diff(const FolderSnapshot& before, const FolderSnapshot& after);

}  // namespace pctx
