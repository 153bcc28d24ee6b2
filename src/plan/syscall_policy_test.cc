#include "plan/syscall_policy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fscrypt.h>
#include <linux/sched.h>
#include <netinet/tcp.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "plan/filtered_guest.h"

namespace pctx {
namespace {

using Guest = FilteredGuest;

TEST(SyscallPolicy, every_entry_exists_once_and_says_why) {
  std::set<std::string_view> names;
  for (const PolicyEntry& entry : default_policy()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name << " is listed twice";
    EXPECT_GE(entry.reason.size(), 4u) << entry.name;
    EXPECT_TRUE(syscall_number(Arch::x86_64, entry.name)) << entry.name << " is misspelt";
  }
}

// The other half of the table, written out: a new entry in the list must be taken off here, in sight of a reviewer.
TEST(SyscallPolicy, what_must_be_refused_is_refused) {
  const Guest guest;
  for (const char* name : {"ptrace",
                           "process_vm_readv",
                           "process_vm_writev",
                           "process_madvise",
                           "process_mrelease",
                           "pidfd_getfd",
                           "kcmp",
                           "io_uring_setup",
                           "io_uring_enter",
                           "io_uring_register",
                           "io_setup",
                           "io_submit",
                           "bpf",
                           "userfaultfd",
                           "perf_event_open",
                           "keyctl",
                           "add_key",
                           "request_key",
                           "mount",
                           "umount2",
                           "move_mount",
                           "fsopen",
                           "fsmount",
                           "fsconfig",
                           "fspick",
                           "open_tree",
                           "open_tree_attr",
                           "mount_setattr",
                           "pivot_root",
                           "chroot",
                           "statmount",
                           "listmount",
                           "sync",
                           "syncfs",
                           "unshare",
                           "setns",
                           "init_module",
                           "finit_module",
                           "delete_module",
                           "kexec_load",
                           "kexec_file_load",
                           "name_to_handle_at",
                           "open_by_handle_at",
                           "clock_settime",
                           "settimeofday",
                           "adjtimex",
                           "clock_adjtime",
                           "swapon",
                           "swapoff",
                           "reboot",
                           "acct",
                           "quotactl",
                           "quotactl_fd",
                           "nfsservctl",
                           "lookup_dcookie",
                           "syslog",
                           "vhangup",
                           "sethostname",
                           "setdomainname",
                           "fanotify_init",
                           "fanotify_mark",
                           "memfd_secret",
                           "remap_file_pages",
                           "migrate_pages",
                           "move_pages",
                           "lsm_set_self_attr",
                           "file_setattr",
                           "cachestat",
                           "sync"}) {
    EXPECT_EQ(guest.answer(name), fails_with(EPERM)) << name;
    EXPECT_EQ(Guest(kRelaxed, Arch::aarch64).answer(name), fails_with(EPERM)) << name;
  }
  for (const char* name : {"iopl", "ioperm", "modify_ldt", "uselib", "ustat", "sysfs", "_sysctl", "create_module"}) {
    EXPECT_EQ(guest.answer(name), fails_with(EPERM)) << name;
  }
}

TEST(SyscallPolicy, numbers_from_0_to_600_have_the_answer_of_the_list_on_every_abi) {
  for (const Arch arch : {Arch::x86_64, Arch::aarch64}) {
    const Guest guest(kRelaxed, arch);
    std::set<std::string_view> plain, conditional;
    for (const PolicyEntry& entry : default_policy()) {
      (entry.condition == Condition::always ? plain : conditional).insert(entry.name);
    }
    for (int number = 0; number <= 600; ++number) {
      seccomp_data call{};
      call.nr = number;
      call.arch = audit_arch(arch);
      const auto name = syscall_name(arch, number);
      const std::uint32_t answer = evaluate(guest.program(), call);
      if (name.empty()) {
        EXPECT_EQ(answer, fails_with(ENOSYS)) << number;
      } else if (plain.contains(name)) {
        EXPECT_EQ(answer, kAllow) << name;
      } else if (!conditional.contains(name)) {
        EXPECT_EQ(answer, fails_with(EPERM)) << name;
      }
      call.arch = 0x40000003;  // i386
      EXPECT_EQ(evaluate(guest.program(), call), SECCOMP_RET_KILL_PROCESS) << number;
      if (arch != Arch::x86_64) continue;
      call.arch = audit_arch(arch);
      call.nr = static_cast<int>(static_cast<std::uint32_t>(number) | kX32Bit);
      EXPECT_EQ(evaluate(guest.program(), call), SECCOMP_RET_KILL_PROCESS) << number;
    }
  }
}

TEST(SyscallPolicy, clone_refuses_every_combination_with_a_namespace_flag) {
  constexpr std::uint64_t kFlags[] = {CLONE_NEWNS,   CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC,
                                      CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET};
  constexpr std::uint64_t kThread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                                    CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  for (const Arch arch : {Arch::x86_64, Arch::aarch64}) {
    const Guest guest(kRelaxed, arch);
    for (unsigned combination = 0; combination < 1u << std::size(kFlags); ++combination) {
      std::uint64_t flags = 0;
      for (std::size_t i = 0; i < std::size(kFlags); ++i) flags |= (combination >> i & 1) ? kFlags[i] : 0;
      for (const std::uint64_t rest :
           {std::uint64_t{17}, kThread, std::uint64_t{CLONE_VFORK | CLONE_VM | 17}, kUpper | 17}) {
        EXPECT_EQ(guest.answer("clone", {flags | rest}), flags == 0 ? kAllow : fails_with(EPERM)) << flags;
      }
    }
  }
}

TEST(SyscallPolicy, descriptors_are_shared_by_threads_and_by_nobody_else) {
  const Guest guest(kRelaxed);
  constexpr std::uint64_t kThread = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
  EXPECT_EQ(guest.answer("clone", {CLONE_FILES | 17}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("clone", {CLONE_FILES | CLONE_VM | CLONE_VFORK | kUpper}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("clone", {CLONE_FILES | kThread}), kAllow);
  EXPECT_EQ(guest.answer("clone", {kThread}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("close_range", {3, 9, 2 | kUpper}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("close_range", {3, 9, 4}), kAllow);
}

TEST(SyscallPolicy, clone3_looks_absent_so_that_glibc_falls_back) {
  for (const Refusal refusal : {Refusal::error, Refusal::notify}) {
    EXPECT_EQ(Guest({.refusal = refusal}).answer("clone3", {0x1000, 88}), fails_with(ENOSYS));
  }
}

TEST(SyscallPolicy, sockets_are_unix_tcp_and_udp_whatever_the_upper_bits_say) {
  const Guest guest;
  for (std::uint64_t family = 0; family < 64; ++family) {
    for (std::uint64_t type = 0; type < 16; ++type) {
      for (const std::uint64_t protocol : Values{0, 1, 6, 17, 58, 115, 132, 136, 255, 256, 262}) {
        const bool inet = family == AF_INET || family == AF_INET6;
        const bool tcp = type == SOCK_STREAM && (protocol == 0 || protocol == 6);
        const bool udp = type == SOCK_DGRAM && (protocol == 0 || protocol == 17);
        const bool local = family == AF_UNIX && (type == SOCK_STREAM || type == SOCK_DGRAM || type == SOCK_SEQPACKET);
        const bool expected = local || (inet && (tcp || udp));
        int code = EAFNOSUPPORT;
        if (inet || family == AF_UNIX) code = EPROTONOSUPPORT;
        if (inet && type == SOCK_RAW) code = EPERM;
        for (const std::uint64_t extra : {std::uint64_t{0}, kUpper}) {
          const Args args{family | extra, type | SOCK_CLOEXEC | SOCK_NONBLOCK | extra, protocol | extra};
          ASSERT_EQ(guest.answer("socket", args), expected ? kAllow : fails_with(code))
              << family << " " << type << " " << protocol;
          if (expected) continue;
          ASSERT_EQ(refusal_errno(Arch::x86_64, guest.call("socket", args)), code);
        }
      }
    }
  }
}

TEST(SyscallPolicy, socketpair_is_for_unix_sockets) {
  const Guest guest;
  EXPECT_EQ(guest.answer("socketpair", {AF_UNIX | kUpper, SOCK_STREAM | SOCK_CLOEXEC}), kAllow);
  EXPECT_EQ(guest.answer("socketpair", {AF_UNIX, SOCK_SEQPACKET}), kAllow);
  EXPECT_EQ(guest.answer("socketpair", {30 /* AF_TIPC */, SOCK_STREAM}), fails_with(EAFNOSUPPORT));
}

TEST(SyscallPolicy, requests_of_terminals_and_for_keys_are_refused_by_their_low_bits) {
  const Guest guest;
  for (const std::uint64_t request :
       Values{TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS, FS_IOC_SET_ENCRYPTION_POLICY, FS_IOC_ADD_ENCRYPTION_KEY,
              FS_IOC_REMOVE_ENCRYPTION_KEY, FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS}) {
    EXPECT_EQ(guest.answer("ioctl", {0, request}), fails_with(EPERM)) << request;
    EXPECT_EQ(guest.answer("ioctl", {0, request | kUpper}), fails_with(EPERM)) << request;
  }
  // Newer than most headers, or of one file system: FS_IOC_GETFSUUID, FS_IOC_GETFSSYSFSPATH, FS_IOC_GETFSMAP,
  // EXT4_IOC_GETFSUUID, BTRFS_IOC_DEV_INFO, BTRFS_IOC_FS_INFO, XFS_IOC_FSGEOMETRY and its forms before.
  for (const std::uint64_t request :
       Values{_IOR(0x15, 0, char[17]), _IOR(0x15, 1, char[129]), _IOWR('X', 59, char[192]), _IOR('f', 44, char[8]),
              _IOWR(0x94, 30, char[4096]), _IOR(0x94, 31, char[1024]), _IOR('X', 126, char[256]),
              _IOR('X', 124, char[112]), _IOR('X', 100, char[112])}) {
    EXPECT_EQ(guest.answer("ioctl", {0, request}), fails_with(ENOTTY)) << request;
    EXPECT_EQ(guest.answer("ioctl", {0, request | kUpper}), fails_with(ENOTTY)) << request;
  }
  for (const std::uint64_t request : Values{TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, TIOCSCTTY, TIOCSPGRP, FIOCLEX}) {
    EXPECT_EQ(guest.answer("ioctl", {0, request}), kAllow) << request;
  }
}

TEST(SyscallPolicy, devices_cannot_be_made) {
  const Guest guest;
  for (std::uint64_t type = 0; type < 16; ++type) {
    const std::uint64_t mode = type << 12;
    const bool allowed = mode == 0 || mode == S_IFREG || mode == S_IFIFO || mode == S_IFSOCK;
    for (const std::uint64_t extra : {std::uint64_t{0600}, kUpper | 01777, std::uint64_t{0xffff0000}}) {
      EXPECT_EQ(guest.answer("mknod", {0, mode | extra}), allowed ? kAllow : fails_with(EPERM)) << type;
      EXPECT_EQ(guest.answer("mknodat", {0, 0, mode | extra}), allowed ? kAllow : fails_with(EPERM)) << type;
    }
  }
}

// On a folder lent read-write a set-id file would stay, as its owner's.
TEST(SyscallPolicy, set_id_bits_cannot_be_set) {
  const Guest guest;
  for (const std::uint64_t bit : Values{S_ISUID, S_ISGID}) {
    for (const std::uint64_t upper : Values{0, kUpper}) {
      const std::uint64_t mode = bit | 0755 | upper;
      EXPECT_EQ(guest.answer("chmod", {0, mode}), fails_with(EPERM));
      EXPECT_EQ(guest.answer("fchmod", {0, mode}), fails_with(EPERM));
      EXPECT_EQ(guest.answer("fchmodat", {0, 0, mode}), fails_with(EPERM));
      EXPECT_EQ(guest.answer("fchmodat2", {0, 0, mode}), fails_with(EPERM));
      EXPECT_EQ(guest.answer("creat", {0, mode}), fails_with(EPERM));
      EXPECT_EQ(guest.answer("mknod", {0, mode}), fails_with(EPERM));
      EXPECT_EQ(guest.answer("mknodat", {0, 0, mode}), fails_with(EPERM));
      for (const std::uint64_t flags : Values{O_CREAT | O_WRONLY, O_TMPFILE | O_RDWR}) {
        EXPECT_EQ(guest.answer("open", {0, flags, mode}), fails_with(EPERM));
        EXPECT_EQ(guest.answer("openat", {0, 0, flags | upper, mode}), fails_with(EPERM));
      }
      // Without them the mode is a register nobody set.
      EXPECT_EQ(guest.answer("openat", {0, 0, O_RDONLY | O_DIRECTORY, mode}), kAllow);
    }
  }
  EXPECT_EQ(guest.answer("chmod", {0, 01777}), kAllow);
  EXPECT_EQ(guest.answer("openat", {0, 0, O_CREAT | O_WRONLY, 0644}), kAllow);
  EXPECT_EQ(guest.answer("openat2", {0, 0, 0, 0}), fails_with(ENOSYS));
}

TEST(SyscallPolicy, limits_of_others_are_not_ours_to_set) {
  const Guest guest;
  EXPECT_EQ(guest.answer("prlimit64", {0, RLIMIT_NOFILE, 0x1000}), kAllow);
  EXPECT_EQ(guest.answer("prlimit64", {1, RLIMIT_NOFILE, 0}), kAllow) << "reading";
  EXPECT_EQ(guest.answer("prlimit64", {1, RLIMIT_NOFILE, 0x1000}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("prlimit64", {1 | kUpper, RLIMIT_NOFILE, 0x1'0000'0000}), fails_with(EPERM));
}

TEST(SyscallPolicy, the_limit_on_core_dumps_stays) {
  const Guest guest;
  EXPECT_EQ(guest.answer("prlimit64", {0, RLIMIT_CORE, 0x1000}), fails_with(0)) << "answered as done";
  EXPECT_EQ(guest.answer("prlimit64", {0, RLIMIT_CORE | kUpper, 0x1'0000'0000}), fails_with(0));
  EXPECT_EQ(guest.answer("setrlimit", {RLIMIT_CORE, 0x1000}), fails_with(0));
  EXPECT_EQ(guest.answer("prlimit64", {0, RLIMIT_CORE, 0}), kAllow) << "reading";
}

TEST(SyscallPolicy, prctl_knows_its_options) {
  const Guest guest;
  for (const std::uint64_t option :
       Values{PR_SET_NAME, PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_DUMPABLE, PR_CAPBSET_READ,
              PR_SET_CHILD_SUBREAPER, 0x53564d41 /* PR_SET_VMA */, PR_SET_PTRACER}) {
    EXPECT_EQ(guest.answer("prctl", {option}), kAllow) << option;
    EXPECT_EQ(guest.answer("prctl", {option | kUpper}), kAllow) << option;
  }
  for (const std::uint64_t option : Values{PR_SET_MM, PR_SCHED_CORE, 67 /* PR_SET_MEMORY_MERGE */}) {
    EXPECT_EQ(guest.answer("prctl", {option | kUpper}), fails_with(EPERM)) << option;
  }
  for (const std::uint64_t option : Values{78, 79, 1000, 0x7fffffff}) {
    EXPECT_EQ(guest.answer("prctl", {option}), fails_with(EINVAL)) << option;
  }
}

TEST(SyscallPolicy, single_dangerous_values_are_refused_and_their_neighbours_work) {
  const Guest guest;
  EXPECT_EQ(guest.answer("seccomp", {1, 8 | kUpper}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("seccomp", {1, 8 | 1}), fails_with(EPERM));
  for (const std::uint64_t other : Values{0 /* STRICT */, 2, 3}) EXPECT_EQ(guest.answer("seccomp", {other}), kAllow);
  EXPECT_EQ(guest.answer("prctl", {PR_SET_SECCOMP, 1 /* STRICT */}), kAllow);
  EXPECT_EQ(guest.answer("preadv2", {0, 0, 0, 0, 0, RWF_NOWAIT | kUpper}), fails_with(EOPNOTSUPP));
  EXPECT_EQ(guest.answer("preadv2", {0, 0, 0, 0, 0, RWF_HIPRI}), kAllow);
  EXPECT_EQ(guest.answer("fadvise64", {0, 0, 0, POSIX_FADV_DONTNEED | kUpper}), fails_with(0));
  EXPECT_EQ(guest.answer("fadvise64", {0, 0, 0, POSIX_FADV_WILLNEED}), kAllow);
  EXPECT_EQ(guest.answer("madvise", {0, 0, MADV_MERGEABLE | kUpper}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("madvise", {0, 0, MADV_DONTNEED}), kAllow);
  for (const std::uint64_t advice : {MADV_COLD, MADV_PAGEOUT})
    EXPECT_EQ(guest.answer("madvise", {0, 0, advice | kUpper}), fails_with(EINVAL));
  EXPECT_EQ(guest.answer("mincore"), fails_with(ENOSYS));
  EXPECT_EQ(guest.answer("mmap", {0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | kUpper}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("mmap", {0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE}), kAllow);
  EXPECT_EQ(guest.answer("fcntl", {3, F_NOTIFY | kUpper}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("fcntl", {3, F_SETLEASE | kUpper}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("fcntl", {3, 1024 + 16 /* F_SETDELEG */}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("fcntl", {3, F_SETLK}), kAllow);
  for (const std::uint64_t event : Values{IN_ACCESS, IN_OPEN, IN_CLOSE_NOWRITE, IN_CLOSE, IN_ALL_EVENTS})
    EXPECT_EQ(guest.answer("inotify_add_watch", {3, 0, event | kUpper}), fails_with(EPERM)) << event;
  EXPECT_EQ(guest.answer("inotify_add_watch", {3, 0, IN_MODIFY | IN_CREATE | IN_DELETE | IN_MOVE | IN_CLOSE_WRITE}),
            kAllow);
  EXPECT_EQ(guest.answer("setsockopt", {3, SOL_TCP | kUpper, TCP_ULP | kUpper}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("setsockopt", {3, SOL_TCP, TCP_NODELAY}), kAllow);
  EXPECT_EQ(guest.answer("setsockopt", {3, SOL_SOCKET, TCP_ULP}), kAllow);
  for (const std::uint64_t persona : {0x0ull, 0x8ull, 0x20000ull, 0x20008ull, 0xffffffffull, 0x8ull | kUpper}) {
    EXPECT_EQ(guest.answer("personality", {persona}), kAllow) << persona;
  }
  for (const std::uint64_t persona : {0x0040000ull, 0x0400000ull, 0x1ull, 0x28000ull}) {
    EXPECT_EQ(guest.answer("personality", {persona}), fails_with(EPERM)) << persona;
  }
}

TEST(SyscallPolicy, pinned_cpus_stay_pinned) {
  EXPECT_EQ(Guest({.memory_is_accounted = true, .pins_cpus = true}).answer("sched_setaffinity"), fails_with(EPERM));
  EXPECT_EQ(Guest(kRelaxed).answer("sched_setaffinity"), kAllow);
}

TEST(SyscallPolicy, nobody_makes_init_wait) {
  const Guest guest(kRelaxed);
  for (const char* name : {"sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"}) {
    EXPECT_EQ(guest.answer(name, {1 | kUpper}), fails_with(EPERM)) << name;
    for (const std::uint64_t pid : {0, 2, 300}) EXPECT_EQ(guest.answer(name, {pid}), kAllow) << name;
  }
  constexpr std::uint64_t kProcess = 0, kGroup = 1, kUser = 2;
  for (const auto& [name, offset] : {std::pair{"setpriority", 0}, std::pair{"ioprio_set", 1}}) {
    EXPECT_EQ(guest.answer(name, {kProcess + offset, 1 | kUpper}), fails_with(EPERM)) << name;
    for (const std::uint64_t pid : {0, 2}) EXPECT_EQ(guest.answer(name, {kProcess + offset, pid}), kAllow) << name;
    for (const std::uint64_t kind : {kGroup, kUser})
      EXPECT_EQ(guest.answer(name, {kind + offset, 0}), fails_with(EPERM)) << name;
  }
}

TEST(SyscallPolicy, notifying_changes_who_answers_and_nothing_else) {
  std::mt19937_64 random(3);
  for (const Arch arch : {Arch::x86_64, Arch::aarch64}) {
    for (const bool strict : {true, false}) {
      const Guest silent({.memory_is_accounted = !strict, .pins_cpus = strict}, arch);
      const Guest heard({.memory_is_accounted = !strict, .pins_cpus = strict, .refusal = Refusal::notify}, arch);
      for (int number = 0; number <= 600; ++number) {
        for (int i = 0; i < 50; ++i) {
          seccomp_data call{};
          call.nr = number;
          call.arch = audit_arch(arch);
          for (auto& argument : call.args) argument = i % 2 ? random() % 64 : random();
          const std::uint32_t plain = evaluate(silent.program(), call);
          const std::uint32_t answer = evaluate(heard.program(), call);
          if (answer == SECCOMP_RET_USER_NOTIF) {
            ASSERT_EQ(fails_with(refusal_errno(arch, call)), plain) << number;
          } else {
            ASSERT_EQ(answer, plain) << number;
            ASSERT_NE(plain, fails_with(EPERM)) << number << " is refused unheard";
          }
        }
      }
    }
  }
}

TEST(SyscallPolicy, the_hot_path_is_short_and_leaves_arguments_alone) {
  const Guest guest;
  EXPECT_LT(guest.program().size(), 600u);  // what is loaded for each box
  for (const PolicyEntry& entry : default_policy()) {
    if (entry.condition != Condition::always) continue;
    const Evaluation evaluation = trace_evaluation(guest.program(), guest.call(entry.name));
    EXPECT_LE(evaluation.steps, 13u) << entry.name;
    EXPECT_FALSE(evaluation.reads_arguments) << entry.name << " cannot be cached by the kernel";
  }
}

TEST(SyscallPolicy, the_launcher_can_do_its_work_under_every_default_filter) {
  for (const bool strict : {true, false}) {
    for (const Arch arch : {Arch::x86_64, Arch::aarch64}) {
      EXPECT_TRUE(
          refused_launch_calls(
              default_filter(arch, {.memory_is_accounted = !strict, .pins_cpus = strict, .refusal = Refusal::notify}))
              .empty());
    }
  }
  EXPECT_EQ(refused_launch_calls({kHostArch, {}, Action::fail(EPERM), std::nullopt}),
            (std::vector<std::string_view>{"sendmsg", "close", "write", "execve", "execveat", "exit_group"}));
}

TEST(SyscallPolicy, an_everyday_program_runs_under_the_installed_filter) {
  auto program = compile_filter(default_filter(kHostArch, FilterOptions{}));
  ASSERT_TRUE(program);
  const sock_fprog prog{static_cast<unsigned short>(program->size()), program->data()};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(1);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) != 0) _exit(2);
    if (syscall(SYS_ptrace, 0, 0, 0, 0) != -1 || errno != EPERM) _exit(3);
    if (syscall(SYS_clone3, nullptr, 0) != -1 || errno != ENOSYS) _exit(4);
    if (socket(AF_NETLINK, SOCK_RAW, 0) != -1 || errno != EAFNOSUPPORT) _exit(5);
    if (memfd_create("x", 0) != -1 || errno != EPERM) _exit(6);
    execl("/bin/sh", "sh", "-c", "test \"$(echo one | cat)\" = one && ls / >/dev/null && (exit 42)", nullptr);
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

}  // namespace
}  // namespace pctx
