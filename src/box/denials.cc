#include "box/denials.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "box/terminal.h"
#include "plan/syscall_policy.h"
#include "sys/syscalls.h"

namespace pctx {
namespace {

constexpr std::size_t kMaxKinds = 64;         // what a report may grow to
constexpr std::uint64_t kFreeRefusals = 512;  // after these, one per millisecond: a flood costs the guest, not us

// Calls whose refused argument is a path: which one.
struct PathArgument {
  std::string_view syscall;
  int index;
};
constexpr std::array<PathArgument, 12> kPaths{{{"mount", 1},
                                               {"umount2", 0},
                                               {"pivot_root", 0},
                                               {"chroot", 0},
                                               {"mknod", 0},
                                               {"mknodat", 1},
                                               {"swapon", 0},
                                               {"acct", 0},
                                               {"open_tree", 1},
                                               {"fsopen", 0},
                                               {"name_to_handle_at", 1},
                                               {"quotactl", 1}}};

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

// The guest may change its memory while we read: the text is for a report and decides nothing.
std::string read_path(pid_t pid, std::uint64_t address) {
  std::array<char, 256> text{};
  // Up to the page's end first: the next page may not be there.
  const std::size_t in_page = 4096 - address % 4096;
  const iovec local{text.data(), std::min(text.size() - 1, in_page)};
  const iovec remote{reinterpret_cast<void*>(address), local.iov_len};
  const ssize_t got = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (got <= 0) return "";
  return printable_path(std::string_view{text.data(), ::strnlen(text.data(), static_cast<std::size_t>(got))});
}

std::string detail(const seccomp_notif& call, std::string_view name) {
  const auto low = [&](int i) { return static_cast<std::uint32_t>(call.data.args[i]); };
  if (name == "socket" || name == "socketpair") {
    const std::string_view family = family_name(low(0));
    return fmt::format("{}, type {}", family.empty() ? fmt::format("family {}", low(0)) : std::string{family},
                       low(1) & 0xf);
  }
  if (name == "ioctl") return fmt::format("request {:#x}", low(1));
  if (name == "clone" || name == "unshare") return fmt::format("flags {:#x}", low(0));
  if (name == "prctl") return fmt::format("option {}", low(0));
  for (const PathArgument& entry : kPaths)
    if (entry.syscall == name) return read_path(static_cast<pid_t>(call.pid), call.data.args[entry.index]);
  return "";
}

}  // namespace

void DenialLog::serve(std::chrono::steady_clock::time_point now) {
  seccomp_notif call;
  std::memset(&call, 0, sizeof call);
  if (::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) {
    if (errno != EINTR && errno != ENOENT) listener_.reset();
    return;
  }
  const int answer = profile_ ? EPERM : refusal_errno(kHostArch, call.data);
  record(call, answer);
  seccomp_notif_resp response{};
  response.id = call.id;
  response.error = -answer;
  (void)::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SEND, &response);
  if (++served_ > kFreeRefusals) not_before_ = now + std::chrono::milliseconds{1};
}

void DenialLog::record(const seccomp_notif& call, int answer) {
  std::string_view name = syscall_name(kHostArch, call.data.nr);
  const std::string text = name.empty() ? fmt::format("#{}", call.data.nr) : std::string{name};
  std::vector<Denial>* book = book_of_ ? book_of_(static_cast<pid_t>(call.pid)) : &denials_;
  if (book == nullptr) return;
  const bool full = book->size() >= kMaxKinds;
  const std::string what = full ? "" : detail(call, name);
  for (Denial& known : *book)
    if (known.syscall == text && (full || known.detail == what)) {
      ++known.count;
      return;
    }
  if (full) return;
  const char* errno_name = ::strerrorname_np(answer);
  book->push_back({text, what, errno_name != nullptr ? errno_name : std::to_string(answer), 1});
}

}  // namespace pctx
