// The input is a program that builds a tree, with a snapshot taken on the way and one at the end. Whatever it builds,
// what the collector reports must agree with a plain walk of the tree, and nothing outside may show up.
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/fd.h"
#include "box/collect.h"

namespace {

namespace fs = std::filesystem;
using pctx::Fd;

constexpr int kMaxOperations = 100;
constexpr std::array<const char*, 8> kNames = {"a", "b", "c", "d", "\n", "\xff", "\\", "canary-not"};
constexpr std::array<mode_t, 5> kModes = {0600, 0755, 04755, 02755, 01777};

void require(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", claim);
  std::abort();
}

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ == size_; }
  std::uint8_t next() { return empty() ? std::uint8_t{0} : data_[at_++]; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

// A directory beneath the folder and a name in it. The parent is opened without following links: the program may build
// links to the outside, but this process must not write there.
struct Place {
  Fd parent;
  std::string name;
};

Place pick_place(int folder, Bytes& bytes) {
  const std::uint8_t choice = bytes.next();
  std::string parent = ".";
  for (int level = choice >> 6; level > 0; --level) parent += std::string("/") + kNames[bytes.next() % kNames.size()];
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const long fd = ::syscall(SYS_openat2, folder, parent.c_str(), &how, sizeof how);
  return {Fd(static_cast<int>(fd)), kNames[choice % kNames.size()]};
}

void make_chain(const Place& place, int levels) {
  Fd at(::fcntl(place.parent.get(), F_DUPFD_CLOEXEC, 0));
  for (int i = 0; i < levels && at; ++i) {
    ::mkdirat(at.get(), place.name.c_str(), 0755);
    at = Fd(::openat(at.get(), place.name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  }
}

void change_mode(const Place& place, mode_t mode) {
  struct stat st {};
  if (::fstatat(place.parent.get(), place.name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (S_ISLNK(st.st_mode)) return;  // chmod would follow it
  if (S_ISDIR(st.st_mode)) mode |= 0700;
  (void)!::fchmodat(place.parent.get(), place.name.c_str(), mode, 0);
}

// Failing calls are part of the game: names collide, parents are missing.
void run_operation(int folder, const fs::path& outside, Bytes& bytes) {
  const std::uint8_t operation = bytes.next();
  const Place place = pick_place(folder, bytes);
  const int at = place.parent.get();
  const char* name = place.name.c_str();
  switch (operation % 11) {
    case 0:
      ::mkdirat(at, name, 0755);
      break;
    case 1: {
      const Fd file(::openat(at, name, O_CREAT | O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
      const std::string text(bytes.next() % 16, 'x');
      if (file && ::write(file.get(), text.data(), text.size()) < 0) break;
      break;
    }
    case 2: {
      const std::array<std::string, 4> targets = {outside, "../outside", "a", "."};
      (void)!::symlinkat(targets[bytes.next() % targets.size()].c_str(), at, name);
      break;
    }
    case 3:
      ::mkfifoat(at, name, 0644);
      break;
    case 4: {
      const Place other = pick_place(folder, bytes);
      ::renameat(at, name, other.parent.get(), other.name.c_str());
      break;
    }
    case 5: {
      const Place other = pick_place(folder, bytes);
      (void)!::linkat(at, name, other.parent.get(), other.name.c_str(), 0);
      break;
    }
    case 6:
      change_mode(place, kModes[bytes.next() % kModes.size()]);
      break;
    case 7:
      if (::unlinkat(at, name, 0) != 0) ::unlinkat(at, name, AT_REMOVEDIR);
      break;
    case 8:
      make_chain(place, bytes.next() % 24);
      break;
    case 9: {
      const timespec times[2] = {{bytes.next(), 0}, {INT64_MAX, 0}};
      ::utimensat(at, name, times, AT_SYMLINK_NOFOLLOW);
      break;
    }
    default:
      ::mknodat(at, name, S_IFSOCK | 0644, 0);
  }
}

using Tree = std::map<std::string, struct stat>;

Tree walk(const fs::path& folder) {
  Tree tree;
  for (const auto& found : fs::recursive_directory_iterator(folder)) {
    struct stat st {};
    require(::lstat(found.path().c_str(), &st) == 0, "the tree is at rest");
    tree.emplace(found.path().string().substr(folder.string().size() + 1), st);
  }
  return tree;
}

bool is_file(const Tree& tree, const std::string& path) {
  const auto found = tree.find(path);
  return found != tree.end() && S_ISREG(found->second.st_mode);
}

bool is_plain_file(const Tree& tree, const std::string& path) {
  if (!is_file(tree, path)) return false;
  const struct stat& st = tree.at(path);
  return st.st_nlink == 1 && (st.st_mode & (S_ISUID | S_ISGID)) == 0;
}

void check_lists(const pctx::FolderChanges& changes, const Tree& before, const Tree& after) {
  for (const auto* list : {&changes.created, &changes.modified, &changes.deleted}) {
    require(std::adjacent_find(list->begin(), list->end(), std::greater_equal<>()) == list->end(), "sorted, unique");
  }
  for (const auto& path : changes.created) {
    require(is_plain_file(after, path) && !is_file(before, path), "created: a plain file that was not there");
  }
  for (const auto& path : changes.modified) require(is_plain_file(after, path), "modified: a plain file");
  for (const auto& path : changes.deleted) {
    require(is_file(before, path) && !is_file(after, path), "deleted: a file that is no longer there");
  }
  for (const auto& skipped : changes.skipped) {
    require(skipped.path == "." || after.count(skipped.path) == 1, "skipped: something that is there");
    require(!is_plain_file(after, skipped.path), "skipped: never a plain file");
  }
}

void check_nothing_is_missing(const pctx::FolderChanges& changes, const Tree& before, const Tree& after) {
  const auto expected_created = std::count_if(after.begin(), after.end(), [&](const auto& entry) {
    return is_plain_file(after, entry.first) && !is_file(before, entry.first);
  });
  const auto expected_deleted = std::count_if(before.begin(), before.end(), [&](const auto& entry) {
    return is_file(before, entry.first) && !is_file(after, entry.first);
  });
  require(static_cast<std::size_t>(expected_created) == changes.created.size(), "all created files are listed");
  require(static_cast<std::size_t>(expected_deleted) == changes.deleted.size(), "all deleted files are listed");
}

pctx::FolderSnapshot snapshot(int folder, const pctx::CollectLimits& limits) {
  auto taken = pctx::take_snapshot(folder, limits);
  require(taken.has_value(), "a tree is never an error");
  require(taken->entries().size() <= limits.max_entries, "the budget holds");
  return *std::move(taken);
}

void run_program(const fs::path& base, Bytes bytes) {
  const fs::path outside = base / "outside";
  const fs::path mnt = base / "mnt";
  fs::create_directories(outside / "canary");
  fs::create_directories(mnt);
  const Fd folder(::open(mnt.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));

  pctx::CollectLimits limits;
  if (const std::uint8_t entries = bytes.next()) limits.max_entries = entries;
  if (const std::uint8_t depth = bytes.next()) limits.max_depth = depth;
  if (const std::uint8_t path_bytes = bytes.next()) limits.max_path_bytes = 4U * path_bytes;
  const int operations_before = bytes.next() % (kMaxOperations / 2);

  int done = 0;
  for (; done < operations_before && !bytes.empty(); ++done) run_operation(folder.get(), outside, bytes);
  const Tree tree_before = walk(mnt);
  const pctx::FolderSnapshot before = snapshot(folder.get(), limits);
  for (; done < kMaxOperations && !bytes.empty(); ++done) run_operation(folder.get(), outside, bytes);
  const Tree tree_after = walk(mnt);
  const pctx::FolderSnapshot after = snapshot(folder.get(), limits);

  for (const auto& entry : after.entries()) require(tree_after.count(entry.path) == 1, "nothing outside is listed");
  const pctx::FolderChanges changes = diff(before, after);
  check_lists(changes, tree_before, tree_after);
  if (!changes.truncated) {  // a partial first look cannot tell new from changed
    for (const auto& path : changes.modified) require(is_file(tree_before, path), "modified: was a file");
    check_nothing_is_missing(changes, tree_before, tree_after);
  }
  const pctx::FolderChanges none = diff(after, after);
  require(none.created.empty() && none.modified.empty() && none.deleted.empty(), "a tree does not differ from itself");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string base = fs::temp_directory_path() / "collect_fuzz.XXXXXX";
  require(::mkdtemp(base.data()) != nullptr, "a temporary directory can be made");
  run_program(base, Bytes(data, size));
  fs::remove_all(base);
  return 0;
}
