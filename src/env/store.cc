#include "env/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "env/key.h"
#include "env/share.h"
#include "sys/files.h"

namespace pctx::env {
namespace {

constexpr std::size_t kMaxRecord = 8U << 20;
constexpr std::size_t kMaxManifest = 512U << 20;

Result<std::string> wanted_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string{value != nullptr ? value : ""};
  };
  if (const std::string own = variable("PCTX_SANDBOX_CACHE_DIR"); !own.empty()) {
    if (!own.starts_with('/'))
      return usage_error("PCTX_SANDBOX_CACHE_DIR is not an absolute path", "give one that starts with /");
    return own;
  }
  if (const std::string cache = variable("XDG_CACHE_HOME"); cache.starts_with('/')) return cache + "/pctx-sandbox";
  if (const std::string home = variable("HOME"); home.starts_with('/')) return home + "/.cache/pctx-sandbox";
  return unavailable("there is no folder for Environments: HOME is not set", "set PCTX_SANDBOX_CACHE_DIR");
}

Result<void> make_folders(const std::string& path) {
  for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return os_error(fmt::format("cannot make {}", part));
    if (at == std::string::npos) return {};
  }
}

// Whoever may write here chooses what runs in our boxes and what is lent to them.
Result<void> check_owner(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    return os_error(fmt::format("cannot use {}", path));
  if (status.st_uid != ::geteuid() || (status.st_mode & 022) != 0)
    return unavailable(fmt::format("{} belongs to somebody else or others may write to it", path),
                       "set PCTX_SANDBOX_CACHE_DIR to a folder of your own");
  return {};
}

std::int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<Record> read_record(int top, const std::string& key) {
  Record record = PCTX_TRY(record_from_json(read_below(top, kRecordName, kMaxRecord)));
  if (record.key != key) return unavailable("an Environment has another one's record", "it is built again when needed");
  return record;
}

// A folder that its owner may not write to cannot be moved to another one, which would change its "..".
bool make_movable(const std::string& folder) {
  const int before = errno;
  const Fd fd{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  const bool done = fd && ::fchmod(fd.get(), 0755) == 0;
  errno = before;
  return done;
}

bool looks_whole(int top, const Record& record) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlinkat(top, "bin/python", target.data(), target.size() - 1);
  if (length <= 0 || ::access(record.python.executable.c_str(), X_OK) != 0) return false;
  return folders_are_unchanged(top, read_below(top, kManifestName, kMaxManifest), record.size.folders);
}

}  // namespace

void lend_environment(Policy& policy, const Environment& environment) {
  lend_interpreter(policy, environment.record.python);
  policy.binds.push_back({environment.path, environment.path, false});
}

Result<Store> Store::open() {
  const std::string wanted = PCTX_TRY(wanted_folder());
  PCTX_TRY(make_folders(wanted));
  std::array<char, PATH_MAX> resolved;
  if (::realpath(wanted.c_str(), resolved.data()) == nullptr) return os_error(fmt::format("cannot use {}", wanted));
  Store store{resolved.data()};
  PCTX_TRY(check_owner(store.folder_));
  for (const char* part : {"env", "new", "old", "lock", "python", "shared"}) {
    PCTX_TRY(make_folders(sys::join(store.folder_, part)));
    PCTX_TRY(check_owner(sys::join(store.folder_, part)));
  }
  return store;
}

// Nothing (an empty descriptor's error) when somebody else holds it.
Result<Fd> Store::try_lock(const std::string& key, const char* kind, bool exclusive) const {
  Fd fd = PCTX_TRY(
      sys::open_at(AT_FDCWD, fmt::format("{}/lock/{}.{}", folder_, key, kind), O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  if (::flock(fd.get(), (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) return os_error("locked by somebody else");
  return fd;
}

Result<Fd> Store::wait_for_build(const std::string& key) const {
  Fd fd = PCTX_TRY(
      sys::open_at(AT_FDCWD, fmt::format("{}/lock/{}.build", folder_, key), O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  while (::flock(fd.get(), LOCK_EX) != 0)
    if (errno != EINTR) return os_error("cannot wait for another build");
  return fd;
}

Result<std::optional<Environment>> Store::find(const std::string& key) const {
  Environment environment;
  environment.path = environment_path(key);
  const Fd top{::open(environment.path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  if (!top) return std::optional<Environment>{};
  environment.in_use = PCTX_TRY(
      sys::open_at(AT_FDCWD, fmt::format("{}/lock/{}.use", folder_, key), O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  // Whoever removes Environments holds this for a moment only.
  while (::flock(environment.in_use.get(), LOCK_SH) != 0)
    if (errno != EINTR) return os_error("cannot lock an Environment");
  // Looked at under the lock: it may have gone, or been replaced, while we waited.
  const Fd again{::open(environment.path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  if (!again) return std::optional<Environment>{};
  auto record = read_record(again.get(), key);
  if (!record || !looks_whole(again.get(), *record)) return std::optional<Environment>{};
  environment.record = *std::move(record);
  (void)::futimens(environment.in_use.get(), nullptr);  // the time of the last use
  return std::optional<Environment>{std::move(environment)};
}

Result<std::string> Store::make_staging(const std::string& key) const {
  std::string path = fmt::format("{}/new/{}-XXXXXX", folder_, key);
  if (::mkdtemp(path.data()) == nullptr) return os_error(fmt::format("cannot make a folder in {}", folder_));
  // Writable for everyone inside a folder that is nobody else's to enter: where a file system has no id-mapped mounts,
  // root's build writes as another uid.
  if (::mkdir((path + "/tree").c_str(), 0777) != 0 || ::chmod((path + "/tree").c_str(), 0777) != 0 ||
      ::mkdir((path + "/input").c_str(), 0755) != 0)
    return os_error(fmt::format("cannot make a folder in {}", path));
  return path;
}

Result<Environment> Store::publish(const std::string& key, const std::string& staging) const {
  const std::string tree = staging + "/tree", place = environment_path(key);
  const Fd top = PCTX_TRY(sys::open_at(AT_FDCWD, tree, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (::renameat2(AT_FDCWD, tree.c_str(), AT_FDCWD, place.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno == EEXIST) (void)make_movable(place);
    if (errno != EEXIST || ::renameat2(AT_FDCWD, tree.c_str(), AT_FDCWD, place.c_str(), RENAME_EXCHANGE) != 0)
      return os_error(fmt::format("cannot publish {}", place));
    // What was there may be in use: it goes when it no longer is.
    const std::string old = fmt::format("{}/old/{}", folder_, staging.substr(staging.rfind('/') + 1));
    (void)::rename(tree.c_str(), old.c_str());
    sweep_folder("old", "use");
  }
  if (::fchmod(top.get(), 0555) != 0) return os_error(fmt::format("cannot freeze {}", place));
  auto found = PCTX_TRY(find(key));
  if (!found) return unavailable("an Environment was damaged right after it was built", "look at the disk");
  return *std::move(found);
}

Result<Fd> Store::open_shared() const {
  return sys::open_at(AT_FDCWD, folder_ + "/shared", O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

Result<std::vector<StoredEnvironment>> Store::list() const {
  std::vector<StoredEnvironment> stored;
  const Fd all = PCTX_TRY(sys::open_at(AT_FDCWD, folder_ + "/env", O_RDONLY | O_DIRECTORY));
  for (const std::string& key : names_below(all.get(), ".")) {
    if (!is_key(key)) continue;
    const Fd top{::openat(all.get(), key.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
    if (!top) continue;
    StoredEnvironment entry;
    auto record = read_record(top.get(), key);
    entry.damaged = !record || !looks_whole(top.get(), *record);
    if (record) entry.record = *std::move(record);
    entry.record.key = key;
    struct stat status {};
    if (::stat(fmt::format("{}/lock/{}.use", folder_, key).c_str(), &status) == 0)
      entry.last_use = status.st_mtim.tv_sec;
    stored.push_back(std::move(entry));
  }
  std::stable_sort(stored.begin(), stored.end(), [](const auto& a, const auto& b) { return a.last_use > b.last_use; });
  return stored;
}

std::vector<std::size_t> choose_to_prune(const std::vector<StoredEnvironment>& stored, const PruneLimits& limits,
                                         std::int64_t now) {
  std::vector<std::size_t> order(stored.size()), chosen;
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return stored[a].last_use < stored[b].last_use; });
  std::uint64_t left = 0;
  for (const StoredEnvironment& entry : stored) left += entry.record.size.bytes;
  for (std::size_t i : order) {
    const StoredEnvironment& entry = stored[i];
    const bool old = limits.older_than && (now - entry.last_use) * 1000 > limits.older_than->count();
    const bool large = limits.max_size && left > *limits.max_size;
    if (!limits.all && !entry.damaged && !old && !large) continue;
    left -= entry.record.size.bytes;
    chosen.push_back(i);
  }
  return chosen;
}

// False when somebody builds or uses it.
Result<bool> Store::remove(const std::string& key) const {
  const auto build = try_lock(key, "build", true);
  const auto use = try_lock(key, "use", true);
  if (!build || !use) return false;
  const Fd old = PCTX_TRY(sys::open_at(AT_FDCWD, folder_ + "/old", O_RDONLY | O_DIRECTORY));
  // First out of sight, in one step: what is half removed must not look built.
  const std::string name = fmt::format("{}-{}", key, ::getpid());
  (void)make_movable(environment_path(key));
  if (::renameat(AT_FDCWD, environment_path(key).c_str(), old.get(), name.c_str()) != 0 && errno != ENOENT)
    return os_error(fmt::format("cannot remove {}", environment_path(key)));
  PCTX_TRY(remove_tree(old.get(), name));
  return true;
}

void Store::sweep_folder(const char* name, const char* lock) const {
  const auto folder = sys::open_at(AT_FDCWD, sys::join(folder_, name), O_RDONLY | O_DIRECTORY);
  if (!folder) return;
  for (const std::string& entry : names_below(folder->get(), ".")) {
    const std::string key = entry.substr(0, entry.find('-'));
    if (!is_key(key)) continue;
    if (const auto held = try_lock(key, lock, true)) (void)remove_tree(folder->get(), entry);
  }
}

void Store::sweep() const {
  sweep_folder("new", "build");
  sweep_folder("old", "use");
}

Result<Pruned> Store::prune(const PruneLimits& limits) const {
  if (!limits.dry_run) sweep();
  Pruned pruned;
  const std::vector<StoredEnvironment> stored = PCTX_TRY(list());
  for (const StoredEnvironment& entry : stored) pruned.bytes_left += entry.record.size.bytes;
  for (std::size_t i : choose_to_prune(stored, limits, now_seconds())) {
    const StoredEnvironment& entry = stored[i];
    if (!limits.dry_run && !PCTX_TRY(remove(entry.record.key))) {
      pruned.in_use.push_back(entry.record.key);
      continue;
    }
    pruned.bytes += entry.record.size.bytes;
    pruned.bytes_left -= entry.record.size.bytes;
    pruned.removed.push_back(entry);
  }
  if (!limits.dry_run)
    if (const auto shared = open_shared()) (void)sweep_shared(shared->get());
  return pruned;
}

}  // namespace pctx::env
