#include "net/confine.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>

#include <algorithm>

#include <fmt/format.h>

#include "base/fd.h"
#include "base/units.h"
#include "sys/kernel_abi.h"

namespace pctx::net {
namespace {

constexpr std::uint64_t kInet = 2, kStream = 1, kDatagram = 2, kTcp = 6, kUdp = 17;
constexpr std::uint64_t kFlagsOfType = 02004000;  // SOCK_NONBLOCK, SOCK_CLOEXEC
constexpr std::uint64_t kExec = 4;
constexpr uid_t kNobody = 65534;

struct Limit {
  __rlimit_resource resource;
  std::uint64_t most;
  const char* name;
};
#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t kMostData = RLIM_INFINITY;  // terabytes of the sanitizer's own would count
#else
constexpr std::uint64_t kMostData = 1_GiB;
#endif
constexpr Limit kLimits[] = {
    {RLIMIT_CORE, 0, "core"},       {RLIMIT_FSIZE, 0, "fsize"},       {RLIMIT_NPROC, 0, "nproc"},
    {RLIMIT_MEMLOCK, 0, "memlock"}, {RLIMIT_DATA, kMostData, "data"},
};
constexpr rlim_t kMostFiles = 65536;

// Moves bytes between sockets and pipes, waits, remembers, and nothing else. open and its kin say "no such file": the
// resolver library looks for its settings and goes on without.
constexpr const char* kAllowed[] = {
    "read",        "write",         "readv",          "writev",          "close",       "recvfrom",    "recvmsg",
    "sendto",      "sendmsg",       "accept4",        "connect",         "getsockname", "getpeername", "getsockopt",
    "setsockopt",  "shutdown",      "splice",         "pipe2",           "fcntl",       "epoll_ctl",   "epoll_wait",
    "epoll_pwait", "poll",          "ppoll",          "munmap",          "mremap",      "madvise",     "brk",
    "futex",       "clock_gettime", "gettimeofday",   "getrandom",       "getpid",      "gettid",      "exit",
    "exit_group",  "rt_sigreturn",  "rt_sigprocmask", "restart_syscall", "sched_yield"};
constexpr const char* kNoSuchFile[] = {"open", "openat",     "access",   "faccessat", "faccessat2",
                                       "stat", "newfstatat", "readlink", "statx"};

ArgTest test(unsigned index, std::uint64_t value, std::uint64_t mask) {
  return {static_cast<std::uint8_t>(index), Compare::masked_eq, Width::low32, value, mask};
}

// An empty, read-only file system in place of everything. /dev is there on every host, and nothing is hidden by it.
bool leave_files() {
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", "/dev", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
                 "size=4k,nr_inodes=1,mode=555") == 0 &&
         ::chdir("/dev") == 0 && abi::pivot_root(".", ".") == 0 && ::umount2(".", MNT_DETACH) == 0 && ::chdir("/") == 0;
}

// Where the host gives them; without, Landlock and the filter keep files away all the same.
void enter_namespaces(bool root) {
  if (::unshare((root ? 0 : CLONE_NEWUSER) | CLONE_NEWNS | CLONE_NEWIPC) != 0) return;
  (void)leave_files();
}

// While there is the right to: leaving root takes it away.
void drop_bounding_set() {
  for (int cap = 0; cap < 64; ++cap)
    if (::prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0) return;  // past the last one, or none may be dropped: none is had
}

Result<void> leave_root() {
  if (::setgroups(0, nullptr) != 0 && errno != EPERM) return os_error("the relay cannot leave its groups");
  if (::setresgid(kNobody, kNobody, kNobody) == 0 && ::setresuid(kNobody, kNobody, kNobody) == 0) return {};
  // Root of a user namespace without such an id is nobody outside; it gives up its capabilities all the same.
  if (errno != EINVAL) return os_error("the relay cannot leave root");
  if (::unshare(CLONE_NEWUSER) == 0) drop_bounding_set();  // a new user namespace comes with a full one
  return {};
}

Result<std::size_t> set_limits() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return os_error("the relay cannot read its limits");
  files.rlim_cur = files.rlim_max = std::min(files.rlim_max, kMostFiles);
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) return os_error("the relay cannot set its limit 'nofile'");
  for (const Limit& limit : kLimits) {
    rlimit value{};
    if (::getrlimit(limit.resource, &value) != 0) return os_error("the relay cannot read its limits");
    value.rlim_cur = value.rlim_max = std::min<rlim_t>(value.rlim_max, limit.most);
    if (::setrlimit(limit.resource, &value) != 0)
      return os_error(fmt::format("the relay cannot set its limit '{}'", limit.name));
  }
  return static_cast<std::size_t>(files.rlim_cur);
}

Result<void> drop_capabilities() {
  (void)::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  if (::syscall(SYS_capset, &header, none) != 0) return os_error("the relay cannot drop its capabilities");
  return {};
}

// No rule at all: every file and folder is closed. Kernels without Landlock have the filter.
void close_files() {
  const int version = abi::landlock_create_ruleset(nullptr, 0, 1 /* version */);
  if (version < 1) return;
  abi::LandlockRuleset rules{(1ULL << 13) - 1, 0, 0};
  if (version >= 2) rules.handled_fs |= abi::kLandlockRefer;
  if (version >= 3) rules.handled_fs |= abi::kLandlockTruncate;
  const Fd ruleset{abi::landlock_create_ruleset(&rules, abi::landlock_ruleset_size(std::min(version, 3)), 0)};
  if (ruleset) (void)abi::landlock_restrict_self(ruleset.get());
}

}  // namespace

FilterSpec relay_filter(Arch arch) {
  FilterSpec spec;
  spec.arch = arch;
  spec.fallback = Action::fail(EPERM);
  spec.unknown = Action::fail(ENOSYS);
  const auto add = [&](const char* name, Action action, std::vector<ArgTest> tests = {}) {
    if (const auto number = syscall_number(arch, name)) spec.rules.push_back({*number, action, std::move(tests)});
  };
  for (const char* name : kAllowed) add(name, Action::allow());
  for (const char* name : kNoSuchFile) add(name, Action::fail(ENOENT));
  // 2 and 10, IPv4 and IPv6, differ in one bit.
  for (const std::uint64_t protocol : {std::uint64_t{0}, kTcp})
    add("socket", Action::allow(),
        {test(0, kInet, 0xffff'fff7), test(1, kStream, ~kFlagsOfType & 0xffff'ffff), test(2, protocol, 0xffff'ffff)});
  for (const std::uint64_t protocol : {std::uint64_t{0}, kUdp})
    add("socket", Action::allow(),
        {test(0, kInet, 0xffff'fff7), test(1, kDatagram, ~kFlagsOfType & 0xffff'ffff), test(2, protocol, 0xffff'ffff)});
  for (const char* name : {"mmap", "mprotect"}) add(name, Action::allow(), {test(2, 0, kExec)});
  return spec;
}

Result<std::size_t> confine() {
  const auto filter = PCTX_TRY(compile_filter(relay_filter(kHostArch)));
  const bool root = ::geteuid() == 0;
  enter_namespaces(root);
  drop_bounding_set();
  if (root) PCTX_TRY(leave_root());
  const std::size_t descriptors = PCTX_TRY(set_limits());
  PCTX_TRY(drop_capabilities());
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return os_error("the relay cannot hide its memory");
  // After the ids have changed, which forgets it.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) return os_error("the relay cannot tie its life to its owner's");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return os_error("the relay cannot give up new privileges");
  close_files();
  const sock_fprog program{static_cast<unsigned short>(filter.size()), const_cast<sock_filter*>(filter.data())};
  if (abi::seccomp(SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
    return unavailable("this kernel takes no system call filter for the relay", "run 'pctx-sandbox doctor'");
  return descriptors;
}

}  // namespace pctx::net
