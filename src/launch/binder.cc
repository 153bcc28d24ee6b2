// The binder's own process. Like child.cc it runs in a copy of the parent and allocates nothing.
#include "launch/binder.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fmt/format.h>

#include "launch/child_root.h"
#include "sys/kernel_abi.h"
#include "wire/packet.h"

namespace pctx {
namespace {

constexpr int kOrders = 3;
constexpr std::size_t kLongestPath = 4096;

struct MountOrder {
  std::uint16_t tag;
  ino_t inode;
  dev_t device;
  char path[kLongestPath];
};

// In a child of the binder's, which leaves for the box and does not come back. Returns errno.
int mount_folder(const MountOrder& order, int mount_namespace, int given) noexcept {
  constexpr std::uint64_t kWritable = abi::kMountNosuid | abi::kMountNodev;
  const int tree = given >= 0 ? given
                              : abi::open_tree(AT_FDCWD, order.path,
                                               abi::kOpenTreeClone | abi::kOpenTreeCloexec | abi::kAtRecursive);
  if (tree < 0) return errno;
  struct stat status;
  // What was looked at is what is lent, whatever the path leads to by now.
  if (::fstat(tree, &status) != 0) return errno;
  if (status.st_ino != order.inode || status.st_dev != order.device || !S_ISDIR(status.st_mode)) return ESTALE;
  if (::setns(mount_namespace, CLONE_NEWNS) != 0) return errno;
  const int root = ::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return errno;
  return attach_tree(tree, root, "mnt", kWritable) ? 0 : errno;
}

// False at the end of the Broker's side.
bool serve_order() noexcept {
  static MountOrder order;
  iovec data{&order, sizeof order};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
  msghdr message;
  std::memset(&message, 0, sizeof message);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(kOrders, &message, MSG_CMSG_CLOEXEC);
  if (got < 0 && errno == EINTR) return true;
  const cmsghdr* header = got == sizeof order ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return false;
  int fds[2] = {-1, -1};
  std::memcpy(fds, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
  order.path[kLongestPath - 1] = 0;
  const long child = ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) ::_exit(mount_folder(order, fds[0], fds[1]));
  int status = 0;
  const bool waited = child > 0 && ::waitpid(static_cast<pid_t>(child), &status, __WALL) == child;
  const int error = waited && WIFEXITED(status) ? WEXITSTATUS(status) : EAGAIN;
  for (const int fd : fds)
    if (fd >= 0) ::close(fd);
  return send_frame(kOrders, {Message::mounted, Step::root_op, 0, order.tag, error});
}

}  // namespace

int start_binder(const ChildPlan& plan) noexcept {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) fail(plan, Step::fork, 3);
  abi::CloneArgs args{};
  // Its own mounts, which stay as they are now; and its own pids, so that nobody takes it for something that a Zygote
  // has left behind.
  args.flags = CLONE_NEWNS | CLONE_NEWPID;
  args.exit_signal = SIGCHLD;
  const long pid = abi::clone3(args);
  if (pid < 0) fail(plan, Step::fork, 4);
  if (pid > 0) {
    ::close(pair[1]);
    return pair[0];
  }
  // Whoever could look into us would see the host.
  (void)::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  (void)::prctl(PR_SET_NAME, "pctx-binder");
  const int high = ::fcntl(pair[1], F_DUPFD, 16);
  if (high < 0 || ::dup3(high, kOrders, O_CLOEXEC) < 0 || abi::close_range(0, kOrders - 1, 0) != 0 ||
      abi::close_range(kOrders + 1, ~0U, 0) != 0)
    ::_exit(127);
  while (serve_order()) {
  }
  ::_exit(0);
}

Error binder_ended() {
  Error error = unavailable("the process that lends folders has ended", "try again");
  error.code = EPIPE;
  return error;
}

Result<void> order_mount(int binder, std::uint16_t tag, const LentPath& folder, int mount_namespace, int tree) {
  MountOrder order{};
  order.tag = tag;
  order.inode = folder.inode;
  order.device = folder.device;
  if (folder.path.size() >= kLongestPath)
    return usage_error("the path of the folder is too long", "lend one with a shorter path");
  std::memcpy(order.path, folder.path.c_str(), folder.path.size());
  std::vector<int> fds{mount_namespace};
  if (tree >= 0) fds.push_back(tree);
  if (!wire::send(binder, {reinterpret_cast<const char*>(&order), sizeof order}, fds))
    return errno == EPIPE ? binder_ended() : os_error("cannot reach the process that lends folders");
  return {};
}

}  // namespace pctx
