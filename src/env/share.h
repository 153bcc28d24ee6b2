// Files that several Environments have in common are kept once. Builds share nothing while they run: when one is
// published, we read what it left, and a file with the same bytes as one that was published before becomes a link to
// that. `shared` is a folder of the store with one name per content; no box ever sees it.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace pctx::env {

// The file `name` in `folder`, frozen already, becomes or is made from the shared one. What cannot be shared (another
// file system, too many links, no room for a name) stays a file of its own.
void share_file(int folder, const std::string& name, const struct stat& status, int shared);

// Removes what no Environment uses any more; returns the bytes.
std::uint64_t sweep_shared(int shared);

}  // namespace pctx::env
