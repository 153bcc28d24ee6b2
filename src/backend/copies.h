// A folder of the host for boxes that cannot have the folder itself: a copy goes in, and what the box changed comes
// back. What comes back is hostile: regular files only, by descriptor, nothing followed; the rest is listed as skipped.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "box/collect.h"

namespace pctx::backend {

class FolderCopy {
 public:
  // Copies `host` into `copy`, which is made if it is not there and emptied if it is; it then belongs to `uid`.
  static Result<FolderCopy> make(const std::string& host, const std::string& copy, uid_t uid, gid_t gid);
  FolderCopy(FolderCopy&&) = default;
  FolderCopy& operator=(FolderCopy&&) = default;

  // Once no box uses it any more. Each file takes the place of the host's in one step.
  Result<FolderChanges> bring_back();
  // The folder itself stays: a Worker that waits has it.
  Result<void> empty();

 private:
  FolderCopy(Fd host, Fd copy, FolderSnapshot before)
      : host_(std::move(host)), copy_(std::move(copy)), before_(std::move(before)) {}
  Fd host_, copy_;
  FolderSnapshot before_;
};

// One file of the host as a copy that belongs to `uid`.
Result<void> copy_file(const std::string& host, const std::string& copy, uid_t uid, gid_t gid);

}  // namespace pctx::backend
