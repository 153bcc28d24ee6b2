#include "env/share.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/sha256.h"
#include "env/tree.h"
#include "sys/files.h"

namespace pctx::env {
namespace {

// Below a page nothing is saved.
constexpr off_t kSmallest = 4096;
constexpr const char* kPlace = ".pctx-shared";  // for a moment, beside the file that it takes the place of

std::string content_of(int folder, const std::string& name) {
  const auto file = sys::open_at(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  const auto digest = file ? sha256_of(file->get()) : std::nullopt;
  return digest ? hex(*digest) : "";
}

bool replace(int folder, const std::string& name, int shared, const std::string& content) {
  if (::linkat(shared, content.c_str(), folder, kPlace, 0) != 0) return false;
  if (::renameat(folder, kPlace, folder, name.c_str()) == 0) return true;
  (void)::unlinkat(folder, kPlace, 0);
  return false;
}

}  // namespace

void share_file(int folder, const std::string& name, const struct stat& status, int shared) {
  if (status.st_size < kSmallest) return;
  const std::string digest = content_of(folder, name);
  if (digest.empty()) return;
  // Whether it can be executed is the file's own, and a link has no other.
  const std::string content = digest + ((status.st_mode & 0100) != 0 ? "-x" : "");
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (::linkat(folder, name.c_str(), shared, content.c_str(), 0) == 0 || errno != EEXIST) return;
    struct stat there {};
    if (::fstatat(shared, content.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (there.st_ino == status.st_ino && there.st_dev == status.st_dev) return;
    // Somebody may have written to an Environment since: a name is no proof.
    if (S_ISREG(there.st_mode) && content_of(shared, content) == digest) {
      (void)replace(folder, name, shared, content);
      return;
    }
    if (::unlinkat(shared, content.c_str(), 0) != 0) return;
  }
}

std::uint64_t sweep_shared(int shared) {
  std::uint64_t bytes = 0;
  for (const std::string& name : names_below(shared, ".")) {
    struct stat status {};
    if (::fstatat(shared, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || status.st_nlink > 1) continue;
    // Whoever links to it at this moment keeps the file; only the name goes.
    if (::unlinkat(shared, name.c_str(), 0) == 0) bytes += static_cast<std::uint64_t>(status.st_size);
  }
  return bytes;
}

}  // namespace pctx::env
