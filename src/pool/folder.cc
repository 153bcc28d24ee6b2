#include "pool/folder.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launch/binder.h"
#include "launch/lend.h"
#include "launch/spawn.h"

namespace pctx {

FolderLender::~FolderLender() { loop_.forget(binder_.get()); }

void FolderLender::listen(Fd binder, std::function<void()> ended) {
  loop_.forget(binder_.get());
  binder_ = std::move(binder);
  ended_ = std::move(ended);
  loop_.watch(binder_.get(), EPOLLIN, [this](std::uint32_t) { on_answer(); });
}

void FolderLender::on_answer() {
  StatusFrame frame{};
  FrameFds fds;
  const FrameRead read = read_frame(binder_.get(), frame, fds);
  if (read == FrameRead::nothing) return;
  if (read == FrameRead::end || frame.kind != Message::mounted) {
    loop_.forget(binder_.get());
    binder_.reset();
    for (const auto& [tag, done] : std::exchange(waiting_, {})) done(EPIPE);
    return ended_();
  }
  const auto found = waiting_.find(frame.index);
  if (found == waiting_.end()) return;
  const auto done = std::move(found->second);
  waiting_.erase(found);
  done(frame.value);
}

void FolderLender::forget(std::uint16_t tag) { waiting_.erase(tag); }

Result<Fd> FolderLender::lend(const Plan& plan, pid_t init, std::uint16_t tag, const std::string& path,
                              std::function<void(int error)> done) {
  if (!binder_) return binder_ended();
  LentPath folder = PCTX_TRY(look_at("mnt_dir", path));
  // The caller has resolved all links and looked where they lead. One that stands there now was put there since,
  // perhaps by a guest that has a folder above this one.
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS;
  Fd held{static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof how))};
  struct stat status {};
  if (!held || ::fstat(held.get(), &status) != 0) return os_error(fmt::format("mnt_dir: {}", path));
  // What is held is what is mounted, by whatever path, and what is listed afterwards.
  folder = {path, true, status.st_uid, status.st_gid, status.st_mode & 07777, status.st_ino, status.st_dev};
  Fd tree;
  if (plan.map_folder && plan.ids.host_uid != folder.uid) {
    Fd& mapping = mappings_[{folder.uid, folder.gid}];
    if (!mapping)
      mapping = PCTX_TRY(IdMapping::make(folder.uid, folder.gid, plan.ids.host_uid, plan.ids.host_gid)).take();
    auto mapped = idmapped_tree(folder, mapping.get());
    // What everyone may write needs no mapping.
    if (!mapped && (folder.mode & 02) == 0) return std::move(mapped).error();
    if (mapped) tree = *std::move(mapped);
  }
  const Fd place{::open(fmt::format("/proc/{}/ns/mnt", init).c_str(), O_RDONLY | O_CLOEXEC)};
  if (!place) return os_error("cannot open the mount namespace of a Worker's box");
  PCTX_TRY(order_mount(binder_.get(), tag, folder, place.get(), tree.get()));
  waiting_[tag] = std::move(done);
  return held;
}

}  // namespace pctx
