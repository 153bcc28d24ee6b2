// What the default list does about memory that nobody counts.
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>

#include <cerrno>

#include "plan/filtered_guest.h"

namespace pctx {
namespace {

using Guest = FilteredGuest;

TEST(SyscallPolicy, who_waits_for_an_exec_shares_its_memory) {
  const Guest guest(kRelaxed);
  EXPECT_EQ(guest.answer("clone", {CLONE_VFORK | 17}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("clone", {CLONE_VFORK | CLONE_VM | 17}), kAllow);
  EXPECT_EQ(guest.answer("clone", {CLONE_VM | 17}), kAllow);
  EXPECT_EQ(guest.answer("clone", {CLONE_VFORK | CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | kUpper}), fails_with(EPERM));
}

TEST(SyscallPolicy, what_the_kernel_keeps_and_charges_to_nobody_is_refused) {
  constexpr std::uint64_t kFlowLabels = 32;  // IPV6_FLOWLABEL_MGR, which only the kernel's headers have
  for (const auto& guest : {Guest(FilterOptions{}), Guest(kRelaxed)}) {
    for (const char* name : {"setxattr", "lsetxattr", "fsetxattr"}) {
      EXPECT_EQ(guest.answer(name, {0, 0, 0, 512 | kUpper}), kAllow);  // for the kernel that is too much by itself
      EXPECT_EQ(guest.answer(name, {0, 0, 0, 513}), fails_with(E2BIG));
      EXPECT_EQ(guest.answer(name, {0, 0, 0, 65536}), fails_with(E2BIG));
    }
    EXPECT_EQ(guest.answer("setxattrat", {}), fails_with(ENOSYS));
    EXPECT_EQ(guest.answer("mbind", {0, 4096, MPOL_BIND, 0x1000, 8}), fails_with(EPERM));
    EXPECT_EQ(guest.answer("mbind", {0, 4096, MPOL_PREFERRED, kUpper, 8}), fails_with(EPERM)) << "nodes are named";
    EXPECT_EQ(guest.answer("mbind", {0, 4096, MPOL_INTERLEAVE, 0}), fails_with(EPERM));
    for (const std::uint64_t mode : Values{MPOL_DEFAULT, MPOL_PREFERRED, MPOL_LOCAL})
      EXPECT_EQ(guest.answer("mbind", {0, 4096, mode, 0}), fails_with(0)) << "answered as done";
    for (const std::uint64_t option :
         Values{SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF})
      EXPECT_EQ(guest.answer("setsockopt", {3, SOL_SOCKET | kUpper, option | kUpper}), fails_with(EPERM)) << option;
    for (const std::uint64_t option : Values{SO_REUSEPORT, SO_DETACH_FILTER})
      EXPECT_EQ(guest.answer("setsockopt", {3, SOL_SOCKET, option}), kAllow) << option;
    EXPECT_EQ(guest.answer("setsockopt", {3, SOL_SOCKET | kUpper, SO_RCVBUF | kUpper}), fails_with(0));
    EXPECT_EQ(guest.answer("setsockopt", {3, SOL_SOCKET | kUpper, SO_ZEROCOPY | kUpper}), fails_with(ENOPROTOOPT));
    for (const std::uint64_t option : Values{TCP_MD5SIG, TCP_MD5SIG_EXT})
      EXPECT_EQ(guest.answer("setsockopt", {3, IPPROTO_TCP, option}), fails_with(ENOPROTOOPT)) << option;
    for (const std::uint64_t option : Values{IPV6_2292PKTOPTIONS, kFlowLabels})
      EXPECT_EQ(guest.answer("setsockopt", {3, IPPROTO_IPV6, option}), fails_with(ENOPROTOOPT)) << option;
    EXPECT_EQ(guest.answer("setsockopt", {3, IPPROTO_IPV6, IPV6_V6ONLY}), kAllow);
    for (const std::uint64_t option : Values{MCAST_BLOCK_SOURCE, MCAST_JOIN_SOURCE_GROUP, MCAST_MSFILTER})
      for (const std::uint64_t level : Values{IPPROTO_IP, IPPROTO_IPV6})
        EXPECT_EQ(guest.answer("setsockopt", {3, level, option | kUpper}), fails_with(ENOPROTOOPT)) << option;
    for (const std::uint64_t option : Values{IP_BLOCK_SOURCE, IP_ADD_SOURCE_MEMBERSHIP, IP_MSFILTER})
      EXPECT_EQ(guest.answer("setsockopt", {3, IPPROTO_IP, option}), fails_with(ENOPROTOOPT)) << option;
    EXPECT_EQ(guest.answer("setsockopt", {3, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP}), kAllow);
    EXPECT_EQ(guest.answer("getsockopt", {3, IPPROTO_TCP | kUpper, TCP_ZEROCOPY_RECEIVE}), fails_with(ENOPROTOOPT));
    EXPECT_EQ(guest.answer("getsockopt", {3, SOL_SOCKET, TCP_ZEROCOPY_RECEIVE}), kAllow);
  }
  EXPECT_EQ(Guest(FilterOptions{}).answer("setsockopt", {3, SOL_SOCKET | kUpper, SO_SNDBUF | kUpper}), fails_with(0));
  EXPECT_EQ(Guest(kRelaxed).answer("setsockopt", {3, SOL_SOCKET, SO_SNDBUF}), kAllow);
  EXPECT_EQ(Guest(FilterOptions{}).answer("prctl", {PR_SET_THP_DISABLE | kUpper}), fails_with(EPERM));
  EXPECT_EQ(Guest(kRelaxed).answer("prctl", {PR_SET_THP_DISABLE}), kAllow);
}

TEST(SyscallPolicy, locks_of_open_files_look_absent) {
  for (const FilterOptions& options : {FilterOptions{}, kRelaxed}) {
    const Guest guest(options);
    for (const std::uint64_t command : Values{F_OFD_SETLK, F_OFD_SETLKW})
      EXPECT_EQ(guest.answer("fcntl", {3, command | kUpper}), fails_with(EINVAL));
    for (const std::uint64_t command : Values{F_SETLK, F_SETLKW, F_OFD_GETLK, F_DUPFD_CLOEXEC})
      EXPECT_EQ(guest.answer("fcntl", {3, command}), kAllow);
  }
}

TEST(SyscallPolicy, filters_of_the_guests_own_are_for_the_supervisor_to_grant) {
  const Guest heard({.memory_is_accounted = true, .refusal = Refusal::notify}), unheard(kRelaxed);
  for (const std::uint64_t flags : Values{0, 1, 2, kUpper}) {
    const auto call = heard.call("seccomp", {1 | kUpper, flags});
    EXPECT_EQ(heard.answer("seccomp", {1 | kUpper, flags}), SECCOMP_RET_USER_NOTIF);
    EXPECT_EQ(unheard.answer("seccomp", {1, flags}), fails_with(EINVAL));
    EXPECT_TRUE(sets_filter(Arch::x86_64, call));
  }
  EXPECT_EQ(heard.answer("prctl", {PR_SET_SECCOMP | kUpper, 2 | kUpper}), SECCOMP_RET_USER_NOTIF);
  EXPECT_EQ(unheard.answer("prctl", {PR_SET_SECCOMP, 2}), fails_with(EINVAL));
  EXPECT_TRUE(sets_filter(Arch::x86_64, heard.call("prctl", {PR_SET_SECCOMP | kUpper, 2 | kUpper})));
  for (const auto& other : {heard.call("seccomp", {1, 8}), heard.call("seccomp", {2}), heard.call("prctl", {22, 1}),
                            heard.call("prctl", {4, 2}), heard.call("getpid")})
    EXPECT_FALSE(sets_filter(Arch::x86_64, other));
}

TEST(SyscallPolicy, memory_that_outlives_its_mappings_needs_accounting) {
  const Guest strict(FilterOptions{});
  const Guest relaxed(kRelaxed);
  for (const char* name : {"memfd_create", "shmget", "semget", "msgget", "vmsplice", "landlock_create_ruleset"}) {
    EXPECT_EQ(strict.answer(name), fails_with(EPERM)) << name;
    EXPECT_EQ(relaxed.answer(name), kAllow) << name;
  }
  for (const char* name : {"splice", "tee", "sendfile"}) {
    EXPECT_EQ(strict.answer(name), fails_with(EINVAL)) << name;
    EXPECT_EQ(relaxed.answer(name), kAllow) << name;
  }
  for (const char* name : {"socket", "socketpair"}) {
    EXPECT_EQ(strict.answer(name, {AF_UNIX | kUpper, SOCK_DGRAM | SOCK_CLOEXEC}), fails_with(ESOCKTNOSUPPORT)) << name;
    EXPECT_EQ(strict.answer(name, {AF_UNIX, SOCK_SEQPACKET}), kAllow) << name;
    EXPECT_EQ(relaxed.answer(name, {AF_UNIX, SOCK_DGRAM}), kAllow) << name;
  }
  EXPECT_EQ(strict.answer("socket", {AF_INET, SOCK_DGRAM}), kAllow);
  EXPECT_EQ(Guest({.memory_is_accounted = true, .pins_cpus = false}).answer("semget"), fails_with(EPERM));
  EXPECT_EQ(relaxed.answer("memfd_create", {0, MFD_HUGETLB | kUpper}), fails_with(EPERM));
  EXPECT_EQ(relaxed.answer("shmget", {0, 4096, IPC_CREAT | SHM_HUGETLB | kUpper}), fails_with(EPERM));
  EXPECT_EQ(strict.answer("fcntl", {1, F_SETPIPE_SZ | kUpper}), fails_with(EPERM));
  EXPECT_EQ(strict.answer("fcntl", {1, F_GETFL}), kAllow);
  EXPECT_EQ(relaxed.answer("fcntl", {1, F_SETPIPE_SZ}), kAllow);
}

}  // namespace
}  // namespace pctx
