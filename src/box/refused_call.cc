#include "box/refused_call.h"

#include <fmt/format.h>

namespace pctx {
namespace {

// Calls with a path among their arguments, or a name: which one it is. Of two, the one that is made or changed.
struct PathArgument {
  std::string_view syscall;
  int index;
};
constexpr PathArgument kPaths[] = {
    {"access", 0},     {"acct", 0},          {"chdir", 0},     {"chmod", 0},         {"chown", 0},
    {"chroot", 0},     {"creat", 0},         {"execve", 0},    {"execveat", 1},      {"faccessat", 1},
    {"faccessat2", 1}, {"fanotify_mark", 4}, {"fchmodat", 1},  {"fchmodat2", 1},     {"fchownat", 1},
    {"fsopen", 0},     {"fspick", 1},        {"futimesat", 1}, {"getxattr", 0},      {"inotify_add_watch", 1},
    {"lchown", 0},     {"lgetxattr", 0},     {"link", 1},      {"linkat", 3},        {"listxattr", 0},
    {"llistxattr", 0}, {"lremovexattr", 0},  {"lsetxattr", 0}, {"lstat", 0},         {"memfd_create", 0},
    {"mkdir", 0},      {"mkdirat", 1},       {"mknod", 0},     {"mknodat", 1},       {"mount", 1},
    {"move_mount", 3}, {"mq_open", 0},       {"mq_unlink", 0}, {"mount_setattr", 1}, {"name_to_handle_at", 1},
    {"newfstatat", 1}, {"open", 0},          {"open_tree", 1}, {"openat", 1},        {"openat2", 1},
    {"pivot_root", 0}, {"quotactl", 1},      {"readlink", 0},  {"readlinkat", 1},    {"removexattr", 0},
    {"rename", 0},     {"renameat", 1},      {"renameat2", 1}, {"rmdir", 0},         {"setxattr", 0},
    {"stat", 0},       {"statfs", 0},        {"statx", 1},     {"swapoff", 0},       {"swapon", 0},
    {"symlink", 1},    {"symlinkat", 2},     {"truncate", 0},  {"umount2", 0},       {"unlink", 0},
    {"unlinkat", 1},   {"utime", 0},         {"utimensat", 1}, {"utimes", 0},
};

// Calls whose argument says what kind of call it is: what it is called, and which one it is.
struct KindArgument {
  std::string_view syscall;
  std::string_view text;
  int index;
  bool hexadecimal = false;
};
constexpr KindArgument kKindArguments[] = {
    {"bpf", "command", 0},         {"clone", "flags", 0, true},       {"fcntl", "command", 1},
    {"ioctl", "request", 1, true}, {"keyctl", "operation", 0},        {"madvise", "advice", 2},
    {"mmap", "flags", 3, true},    {"personality", "value", 0, true}, {"prctl", "option", 0},
    {"prlimit64", "process", 0},   {"ptrace", "request", 0},          {"seccomp", "flags", 1, true},
    {"setns", "type", 1, true},    {"unshare", "flags", 0, true},
};

constexpr std::uint32_t kSharedAnonymous = 0x21;  // MAP_SHARED | MAP_ANONYMOUS
constexpr std::uint32_t kSetPipeSize = 1031;      // F_SETPIPE_SZ

std::string_view family_name(std::uint32_t family) {
  switch (family) {
    case 16:
      return "AF_NETLINK";
    case 17:
      return "AF_PACKET";
    case 38:
      return "AF_ALG";
    case 40:
      return "AF_VSOCK";
    case 31:
      return "AF_BLUETOOTH";
    case 2:
      return "AF_INET";
    case 10:
      return "AF_INET6";
    default:
      return "";
  }
}

}  // namespace

std::string asked_for(std::string_view syscall, const seccomp_data& call) {
  const auto low = [&](int i) { return static_cast<std::uint32_t>(call.args[i]); };
  if (syscall == "socket" || syscall == "socketpair") {
    const std::string_view family = family_name(low(0));
    return fmt::format("{}, type {}", family.empty() ? fmt::format("family {}", low(0)) : std::string{family},
                       low(1) & 0xf);
  }
  if (syscall == "setsockopt") return fmt::format("level {}, option {}", low(1), low(2));
  if (syscall == "mmap" && (low(3) & kSharedAnonymous) == kSharedAnonymous) return "MAP_SHARED | MAP_ANONYMOUS";
  if (syscall == "fcntl" && low(1) == kSetPipeSize) return "F_SETPIPE_SZ";
  for (const KindArgument& kind : kKindArguments)
    if (kind.syscall == syscall)
      return kind.hexadecimal ? fmt::format("{} {:#x}", kind.text, low(kind.index))
                              : fmt::format("{} {}", kind.text, low(kind.index));
  return "";
}

std::optional<std::uint64_t> text_address(std::string_view syscall, const seccomp_data& call) {
  for (const PathArgument& path : kPaths)
    if (path.syscall == syscall) return call.args[path.index];
  return std::nullopt;
}

}  // namespace pctx
