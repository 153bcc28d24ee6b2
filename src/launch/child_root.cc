// The only code that runs between clone and exec, the root: built by pid 1 of a box, or by the maker for all boxes that
// are cut from its template.
#include "launch/child_root.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <utility>

#include "sys/kernel_abi.h"

namespace pctx {
namespace {

bool make_private(const char* target) noexcept {
  return ::mount(nullptr, target, nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// Before 5.12 there is no mount_setattr, and the old remount works only on a mount that is attached.
bool remount(int root, const char* target, std::uint64_t attributes) noexcept {
  unsigned long flags = MS_REMOUNT | MS_BIND;
  if ((attributes & abi::kMountRdonly) != 0) flags |= MS_RDONLY;
  if ((attributes & abi::kMountNosuid) != 0) flags |= MS_NOSUID;
  if ((attributes & abi::kMountNodev) != 0) flags |= MS_NODEV;
  if ((attributes & abi::kMountNoexec) != 0) flags |= MS_NOEXEC;
  return ::fchdir(root) == 0 && ::mount(nullptr, target, nullptr, flags, nullptr) == 0;
}

// Nothing is ever visible with looser flags than it should have: they are set before it is attached. Private, or what
// the host mounts there later would come into the box without these flags, and what the box mounts there would come to
// the host, and stay.
bool attach(int tree, int root, const char* target, std::uint64_t attributes) noexcept {
  const abi::MountAttr attr{attributes, 0, MS_PRIVATE, 0};
  const bool set = abi::mount_setattr(tree, abi::kAtRecursive, attr) == 0;
  if (!set && errno != ENOSYS) return false;
  if (abi::move_mount(tree, root, target) != 0) return false;
  return set || (::fchdir(root) == 0 && make_private(target) && remount(root, target, attributes));
}

}  // namespace

bool attach_tree(int tree, int root, const char* target, std::uint64_t attributes) noexcept {
  return attach(tree, root, target, attributes);
}

int new_filesystem(const char* type, const char* const* options, std::uint64_t attributes) noexcept {
  const int fs = abi::fsopen(type);
  if (fs < 0) return -1;
  for (; options != nullptr && *options != nullptr; options += 2)
    if (abi::fsconfig(fs, abi::kFsconfigSetString, options[0], options[1]) != 0) return -1;
  if (abi::fsconfig(fs, abi::kFsconfigCreate, nullptr, nullptr) != 0) return -1;
  const int mount = abi::fsmount(fs, attributes);
  ::close(fs);
  return mount;
}

// No further than our caller's `ulimit -f` lets any file grow.
static bool extend(int fd, std::uint64_t size) noexcept {
  rlimit most{};
  if (::syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, nullptr, &most) != 0) return false;
  return ::ftruncate(fd, static_cast<off_t>(std::min(size, most.rlim_cur))) == 0;
}

bool write_file(int dir, const char* path, const void* text, std::size_t size, unsigned mode, int flags,
                std::uint64_t extend_to) noexcept {
  const int fd = ::openat(dir, path, O_WRONLY | O_CLOEXEC | flags, mode);
  if (fd < 0) return false;
  bool ok = ::write(fd, text, size) == static_cast<ssize_t>(size);
  if (extend_to != 0) ok = ok && extend(fd, extend_to);
  ::close(fd);
  return ok;
}

void clone_binds(ChildPlan& plan) noexcept {
  for (std::size_t i = 0; i < plan.op_count; ++i) {
    ChildOp& op = plan.ops[i];
    if (op.kind != RootOpKind::bind) continue;
    if (op.tree < 0)
      op.tree = abi::open_tree(AT_FDCWD, op.text, abi::kOpenTreeClone | abi::kOpenTreeCloexec | abi::kAtRecursive);
    if (op.tree < 0) fail(plan, Step::clone_bind, i);
    if (op.device) {
      struct stat status;
      // A container may have planted anything at /dev/null (CVE-2025-31133): look at the descriptor, not at the name.
      if (::fstat(op.tree, &status) != 0 || !S_ISCHR(status.st_mode) || status.st_rdev != makedev(op.major, op.minor)) {
        errno = ENODEV;
        fail(plan, Step::verify_device, i);
      }
    }
    if (op.inode != 0) {
      struct stat status;
      // What was looked at is what is lent: a guest that shares the folder may have swapped it for a link meanwhile.
      if (::fstat(op.tree, &status) != 0 || status.st_ino != op.inode || status.st_dev != op.holder) {
        errno = ESTALE;
        fail(plan, Step::clone_bind, i);
      }
    }
  }
}

void apply_network_settings(const ChildPlan& plan, int proc) noexcept {
  for (const char* const* next = plan.network_settings; *next != nullptr; next += 2)
    (void)write_file(proc, next[0], next[1], std::strlen(next[1]), 0, 0);
}

int make_proc(const ChildPlan& plan, const ChildOp& op, int root, std::size_t at, int first_pid,
              Settings settings) noexcept {
  const int proc = new_filesystem("proc", nullptr, op.attributes & ~abi::kMountRdonly);
  if (proc < 0) fail(plan, Step::proc, at);
  if (settings == Settings::of_both_namespaces) apply_network_settings(plan, proc);
  for (std::size_t i = 0; settings != Settings::none && plan.settings[i] != nullptr; i += 2) {
    const char* value = plan.settings[i + 1];
    // Bounds that older kernels do not have cannot be exceeded there either.
    if (!write_file(proc, plan.settings[i], value, std::strlen(value), 0, 0) && errno != ENOENT)
      fail(plan, Step::setting, i / 2);
  }
  if (first_pid > 1) {
    char text[16];
    const auto end = std::to_chars(text, text + sizeof text, first_pid - 1);
    // Without the file the pids in all boxes would be equal, which is what must not be.
    if (!write_file(proc, "sys/kernel/ns_last_pid", text, static_cast<std::size_t>(end.ptr - text), 0, 0))
      fail(plan, Step::setting, 65535);
  }
  // Read-only from here on.
  if (!attach(proc, root, op.target, op.attributes)) fail(plan, Step::proc, at);
  return proc;
}

namespace {

// Something empty to lay over files, or over folders.
struct Cover {
  const char* source;  // null: a file system of its own
  std::uint64_t attributes;
  bool applied = false;  // a copy of a mask has its flags
  int tree = -1;         // in hand: this kernel did not have what it was for
};

void mask(const ChildPlan& plan, const ChildOp& op, int root, std::size_t at, Cover& cover) noexcept {
  static constexpr const char* kEmpty[] = {"nr_inodes", "2", "mode", "0555", nullptr};
  if (cover.tree < 0)
    cover.tree = cover.source == nullptr
                     ? new_filesystem("tmpfs", kEmpty, cover.attributes)
                     : abi::open_tree(root, cover.source, abi::kOpenTreeClone | abi::kOpenTreeCloexec);
  if (cover.tree < 0) fail(plan, Step::root_op, at);
  if (cover.applied ? abi::move_mount(cover.tree, root, op.target) != 0
                    : !attach(cover.tree, root, op.target, cover.attributes)) {
    if (errno != ENOENT) fail(plan, Step::root_op, at);
    return;
  }
  cover.source = op.target;
  cover.applied = true;
  ::close(std::exchange(cover.tree, -1));
}

}  // namespace

// Whoever has a lent folder may leave links in it, and swap them while we look: none is followed. Should one lead to
// "..", the old root, which still lies over ours, would be what it finds.
int open_holder(int root, const char* target, const char*& name) noexcept {
  char holder[PATH_MAX];
  const char* const slash = std::strrchr(target, '/');
  const auto size = static_cast<std::size_t>(slash - target);
  if (size >= sizeof holder) {
    errno = ENAMETOOLONG;
    return -1;
  }
  std::memcpy(holder, target, size);
  holder[size] = '\0';
  name = slash + 1;
  const int folder = abi::openat2(root, holder, {O_PATH | O_DIRECTORY | O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS});
  struct stat status;
  if (folder < 0 || ::fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(status.st_mode))
    return folder;
  // No mount follows it, and none is to hide it.
  ::close(folder);
  errno = ELOOP;
  return -1;
}

bool make_inside(const ChildOp& op, int folder) noexcept {
  return op.text_size == 0 || ::mkdirat(folder, op.text, 0755) == 0;
}

void apply(const ChildPlan& plan, ChildOp& op, int root, int& proc, std::size_t at) noexcept {
  bool ok = true;
  int folder = root;
  const char* name = op.target;
  if (op.inside && (folder = open_holder(root, op.target, name)) < 0) fail(plan, Step::root_op, at);
  switch (op.kind) {
    case RootOpKind::directory:
      ok = ::mkdirat(root, op.target, op.mode) == 0 || errno == EEXIST;
      // mkdir is subject to the umask, which must not decide about /tmp.
      if (ok && op.mode != 0755) ok = ::fchmodat(root, op.target, op.mode, 0) == 0;
      break;
    case RootOpKind::link:
      ok = ::symlinkat(op.text, root, op.target) == 0;
      break;
    case RootOpKind::file:
      ok = write_file(root, op.target, op.text, op.text_size, op.mode, O_CREAT | O_EXCL, op.size);
      break;
    case RootOpKind::bind:
      // One call, where opening and closing it would be two; there are a dozen of these.
      if (!op.directory && !op.inside && ::mknodat(root, op.target, S_IFREG | 0444, 0) != 0 && errno != EEXIST &&
          errno != EACCES)
        fail(plan, Step::root_op, at);
      ok = attach(op.tree, folder, name, op.attributes);
      ::close(op.tree);
      break;
    case RootOpKind::hold: {
      const int tree = abi::open_tree(
          folder, name, abi::kOpenTreeClone | abi::kOpenTreeCloexec | abi::kAtRecursive | AT_SYMLINK_NOFOLLOW);
      ok = tree >= 0 && abi::move_mount(tree, folder, name) == 0;
      if (tree >= 0) ::close(tree);
      break;
    }
    case RootOpKind::scratch: {
      const int tree = abi::open_tree(root, op.target, abi::kOpenTreeClone | abi::kOpenTreeCloexec);
      ok = tree >= 0 && make_inside(op, tree) && abi::move_mount(tree, root, op.target) == 0;
      ::close(tree);
      break;
    }
    case RootOpKind::tmpfs: {
      const int tree = new_filesystem("tmpfs", op.options, op.attributes);
      ok = tree >= 0 && abi::move_mount(tree, folder, name) == 0;
      if (ok && plan.send_probes) ok = send_frame(plan.status, {Message::store, Step::handshake, 0, 0, 0}, &tree, 1);
      ::close(tree);
      break;
    }
    case RootOpKind::devpts: {
      static constexpr const char* kOptions[] = {"ptmxmode", "0666", "mode", "0620", "max", "64", nullptr};
      const int tree = new_filesystem("devpts", kOptions, op.attributes);
      ok = tree >= 0 && abi::move_mount(tree, root, op.target) == 0;
      ::close(tree);
      break;
    }
    case RootOpKind::proc:
      proc = make_proc(plan, op, root, at);
      break;
    case RootOpKind::mask:
      break;  // later, see apply_masks
  }
  if (!ok) fail(plan, Step::root_op, at);
  if (folder != root) ::close(folder);
}

// Written into the box's own root and unlinked again: no file of the host's is ever /proc/1/exe (CVE-2019-5736), and no
// name is left for the guest to see.
int place_init(const ChildPlan& plan, int root) noexcept {
  constexpr const char* kName = ".init";
  if (!write_file(root, kName, plan.init_image, plan.init_size, 0500, O_CREAT | O_EXCL)) fail(plan, Step::init);
  const int fd = ::openat(root, kName, O_PATH | O_CLOEXEC);
  if (fd < 0 || ::unlinkat(root, kName, 0) != 0) fail(plan, Step::init, 1);
  return fd;
}

int enter_root(const ChildPlan& plan) noexcept {
  // In a user namespace of our own the host's mounts are no peers of ours, and learn nothing of what we mount.
  if (plan.shares_user && !make_private("/")) fail(plan, Step::root, 3);
  const int root = new_filesystem("tmpfs", plan.root_options, abi::kMountNosuid | abi::kMountNodev);
  if (root < 0) fail(plan, Step::root);
  // The new root must hang in our namespace before anything can be mounted below it (detached trees take no mounts
  // before 6.15). Every source was cloned already, so hiding the attach point hides nothing we need.
  if (abi::move_mount(root, AT_FDCWD, plan.attach_point) != 0) fail(plan, Step::attach);
  // Entered while it is empty: an absolute link of a system folder then leads into the box. The old root still lies
  // over it, because a new /proc is only granted where one is visible; ".." of the root is a way there.
  if (::fchdir(root) != 0 || abi::pivot_root(".", ".") != 0) fail(plan, Step::pivot);
  return root;
}

void detach_old_root(const ChildPlan& plan, int root) noexcept {
  // The old root lies over the new one at "." and is detached from there.
  if (::fchdir(root) != 0 || ::umount2(".", MNT_DETACH) != 0 || ::chdir("/") != 0) fail(plan, Step::pivot, 1);
}

void seal_root(const ChildPlan& plan, int root) noexcept {
  constexpr std::uint64_t kSealed = abi::kMountRdonly | abi::kMountNosuid | abi::kMountNodev;
  // Not recursive: the scratch folders are mounts of their own and stay writable.
  if (abi::mount_setattr(root, 0, {kSealed, 0, 0, 0}) != 0 && (errno != ENOSYS || !remount(root, ".", kSealed)))
    fail(plan, Step::pivot, 2);
}

void apply_masks(const ChildPlan& plan, int root) noexcept {
  // Nothing of the box's own tree covers folders: the caller may have lent something over any part of it but /dev and
  // /proc. A folder of a template has flags that a box below it cannot take off again; a device would not open with
  // them.
  constexpr std::uint64_t kFlags = abi::kMountRdonly | abi::kMountNosuid | abi::kMountNoexec;
  Cover files{"dev/null", kFlags}, folders{nullptr, kFlags | abi::kMountNodev};
  for (std::size_t i = 0; i < plan.op_count; ++i)
    if (plan.ops[i].kind == RootOpKind::mask) mask(plan, plan.ops[i], root, i, plan.ops[i].directory ? folders : files);
  for (const Cover& cover : {files, folders})
    if (cover.tree >= 0) ::close(cover.tree);
  if (::chdir("/") != 0) fail(plan, Step::pivot, 3);
}

}  // namespace pctx
