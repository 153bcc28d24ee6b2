// A folder that a build in a box has filled, looked at from the host: nothing in it is trusted, no link is followed, no
// name is shown raw. Walks by descriptors.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/sha256.h"

namespace pctx::env {

struct TreeSize {
  std::uint64_t files = 0, folders = 0, bytes = 0;
};

// Files, folders and links, deepest first; `path` is relative to the top, which itself is not visited.
using Visit = std::function<Result<void>(int folder, const std::string& name, const std::string& path,
                                         const struct stat& status)>;
// `open_closed` opens folders that their owner may not enter; only for trees that nobody else writes to any more.
Result<void> walk(int top, const Visit& visit, bool open_closed = false);

// Bytes below `top`, as much of it as can be read now: for watching a build.
std::uint64_t measure(int top);

// Removes `name` in `parent` with everything below it, however deep, read-only folders included. Nothing there is fine.
Result<void> remove_tree(int parent, const std::string& name);

// Everything read-only for everyone, nothing set-user-id, all of it ours; an error names what is neither file, folder
// nor link. Returns the manifest: what there is, with sizes and the folders' times.
struct Frozen {
  std::string manifest;
  TreeSize size;
};
// With `shared`, files that other Environments have too are kept once, see share.h.
Result<Frozen> freeze(int top, int shared = -1);

// Whether each folder of the manifest is as it was: a file that was removed, added or renamed changes its folder's
// time. One look per folder, none per file.
bool folders_are_unchanged(int top, std::string_view manifest, std::uint64_t expected_folders);

// What differs from the manifest, in words; empty if nothing does. Reads every file that a RECORD has a hash of.
Result<std::vector<std::string>> compare_with_manifest(int top, std::string_view manifest);

// Of everything that is left to read; nothing if it cannot be read.
std::optional<Sha256::Digest> sha256_of(int fd);

// A path as the manifest writes it: printable, without blanks, reversible.
std::string manifest_path(std::string_view path);

// A regular file below `top`, not through links; empty if there is none or it is too large.
std::string read_below(int top, const std::string& path, std::size_t limit);

// Names in the folder `path` below `top`, sorted.
std::vector<std::string> names_below(int top, const std::string& path);

}  // namespace pctx::env
