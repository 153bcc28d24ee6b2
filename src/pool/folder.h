// Lends callers' folders to Workers that wait: a folder is no reason for a pool of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/result.h"
#include "plan/plan.h"
#include "sys/loop.h"

namespace pctx {

class FolderLender {
 public:
  explicit FolderLender(sys::Loop& loop) : loop_(loop) {}
  ~FolderLender();
  FolderLender(const FolderLender&) = delete;
  FolderLender& operator=(const FolderLender&) = delete;

  void listen(Fd binder, std::function<void()> ended);  // without it no folder can be lent any more
  // Mounts the folder at /mnt of the box with this init; `done` is called from the loop, with 0 or errno, which
  // is EPIPE if the binder has ended. What is returned is the folder itself, to look at.
  Result<Fd> lend(const Plan& plan, pid_t init, std::uint16_t tag, const std::string& path,
                  std::function<void(int error)> done);
  void forget(std::uint16_t tag);  // nobody is told

 private:
  void on_answer();

  sys::Loop& loop_;
  Fd binder_;
  std::function<void()> ended_;
  std::map<std::uint16_t, std::function<void(int)>> waiting_;
  std::map<std::pair<uid_t, gid_t>, Fd> mappings_;  // by the owner of a folder
};

}  // namespace pctx
