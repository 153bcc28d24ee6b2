#include "pool/folder.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "launch/binder.h"
#include "launch/lend.h"
#include "launch/spawn.h"

namespace pctx {

FolderLender::~FolderLender() { loop_.forget(binder_.get()); }

void FolderLender::listen(Fd binder) {
  loop_.forget(binder_.get());
  binder_ = std::move(binder);
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
    return;
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
  const LentPath folder = PCTX_TRY(look_at("mnt_dir", path));
  if (!folder.directory) return usage_error(fmt::format("mnt_dir: {} is not a folder", path));
  if (!binder_) return unavailable("the process that lends folders has ended", "run `pctx-sandbox restart`");
  Fd held{::open(folder.path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  struct stat status {};
  // What is listed afterwards is what is lent.
  if (!held || ::fstat(held.get(), &status) != 0 || status.st_ino != folder.inode || status.st_dev != folder.device)
    return unavailable(fmt::format("mnt_dir: {} was replaced while it was lent", path), "try again");
  Fd tree;
  if (plan.map_folder && plan.ids.host_uid != folder.uid) {
    Fd& mapping = mappings_[{folder.uid, folder.gid}];
    if (!mapping)
      mapping = PCTX_TRY(id_mapping(folder.uid, folder.gid, plan.ids.host_uid, plan.ids.host_gid));
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
