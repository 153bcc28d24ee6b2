// Kernel constants and structures that are newer than the headers of the distributions we build on (Debian 12 has 6.1,
// Ubuntu 22.04 has 5.15), and raw calls that libc does not wrap. Everything here is safe between clone and exec: no
// allocation, no lock, errors in errno.
#pragma once

#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace pctx::abi {

// --- clone3 (5.3; CLONE_INTO_CGROUP 5.7) ------------------------------------------------------------------------
struct CloneArgs {
  std::uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
inline constexpr std::uint64_t kCloneClearSighand = 0x100000000ULL;
inline constexpr std::uint64_t kCloneIntoCgroup = 0x200000000ULL;
inline long clone3(CloneArgs& args) noexcept { return ::syscall(SYS_clone3, &args, sizeof args); }

// --- mounts by descriptor (5.2; mount_setattr 5.12) -------------------------------------------------------------
inline constexpr unsigned kOpenTreeClone = 1;
inline constexpr unsigned kOpenTreeCloexec = O_CLOEXEC;
inline constexpr unsigned kAtRecursive = 0x8000;
inline constexpr unsigned kMoveFromEmpty = 0x00000004;  // MOVE_MOUNT_F_EMPTY_PATH
inline constexpr std::uint64_t kMountRdonly = 0x01;
inline constexpr std::uint64_t kMountNosuid = 0x02;
inline constexpr std::uint64_t kMountNodev = 0x04;
inline constexpr std::uint64_t kMountNoexec = 0x08;
inline constexpr std::uint64_t kMountIdmap = 0x00100000;
inline constexpr unsigned kFsconfigSetString = 1;
inline constexpr unsigned kFsconfigCreate = 6;
struct MountAttr {
  std::uint64_t set, clear, propagation, userns_fd;
};
inline int open_tree(int dir, const char* path, unsigned flags) noexcept {
  return static_cast<int>(::syscall(SYS_open_tree, dir, path, flags));
}
inline int move_mount(int from, int to_dir, const char* to) noexcept {
  return static_cast<int>(::syscall(SYS_move_mount, from, "", to_dir, to, kMoveFromEmpty));
}
inline int fsopen(const char* type) noexcept { return static_cast<int>(::syscall(SYS_fsopen, type, 1U)); }
inline int fsconfig(int fs, unsigned command, const char* key, const char* value) noexcept {
  return static_cast<int>(::syscall(SYS_fsconfig, fs, command, key, value, 0));
}
inline int fsmount(int fs, std::uint64_t attributes) noexcept {
  return static_cast<int>(::syscall(SYS_fsmount, fs, 1U, attributes));
}
inline int mount_setattr(int mount, unsigned flags, const MountAttr& attr) noexcept {
  constexpr long kNumber = 442;
  return static_cast<int>(
      ::syscall(kNumber, mount, "", static_cast<unsigned>(AT_EMPTY_PATH) | flags, &attr, sizeof attr));
}
inline int pivot_root(const char* new_root, const char* put_old) noexcept {
  return static_cast<int>(::syscall(SYS_pivot_root, new_root, put_old));
}

// --- openat2 (5.6) ----------------------------------------------------------------------------------------------
inline int openat2(int dir, const char* path, const open_how& how) noexcept {
  return static_cast<int>(::syscall(SYS_openat2, dir, path, &how, sizeof how));
}

// --- processes --------------------------------------------------------------------------------------------------
inline int pidfd_send_signal(int pidfd, int signal) noexcept {
  return static_cast<int>(::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0U));
}
inline int close_range(unsigned first, unsigned last, unsigned flags) noexcept {
  constexpr long kNumber = 436;  // 5.9
  return static_cast<int>(::syscall(kNumber, first, last, flags));
}
inline int execveat(int dir, const char* path, const char* const* argv, const char* const* envp, int flags) noexcept {
  return static_cast<int>(::syscall(SYS_execveat, dir, path, argv, envp, flags));
}

// --- seccomp ----------------------------------------------------------------------------------------------------
inline constexpr unsigned kSeccompNewListener = 1U << 3;
inline int seccomp(unsigned operation, unsigned flags, const void* args) noexcept {
  return static_cast<int>(::syscall(SYS_seccomp, operation, flags, args));
}

// --- keyrings ---------------------------------------------------------------------------------------------------
inline long join_session_keyring() noexcept { return ::syscall(SYS_keyctl, 1 /* JOIN_SESSION_KEYRING */, nullptr); }

// --- Landlock: the rights of every ABI, so that a ruleset can be cut to what the kernel knows -------------------
inline constexpr std::uint64_t kLandlockExecute = 1ULL << 0;
inline constexpr std::uint64_t kLandlockWriteFile = 1ULL << 1;
inline constexpr std::uint64_t kLandlockReadFile = 1ULL << 2;
inline constexpr std::uint64_t kLandlockReadDir = 1ULL << 3;
inline constexpr std::uint64_t kLandlockRemoveDir = 1ULL << 4;
inline constexpr std::uint64_t kLandlockRemoveFile = 1ULL << 5;
inline constexpr std::uint64_t kLandlockMakeChar = 1ULL << 6;
inline constexpr std::uint64_t kLandlockMakeDir = 1ULL << 7;
inline constexpr std::uint64_t kLandlockMakeReg = 1ULL << 8;
inline constexpr std::uint64_t kLandlockMakeSock = 1ULL << 9;
inline constexpr std::uint64_t kLandlockMakeFifo = 1ULL << 10;
inline constexpr std::uint64_t kLandlockMakeBlock = 1ULL << 11;
inline constexpr std::uint64_t kLandlockMakeSym = 1ULL << 12;
inline constexpr std::uint64_t kLandlockRefer = 1ULL << 13;             // ABI 2
inline constexpr std::uint64_t kLandlockTruncate = 1ULL << 14;          // ABI 3
inline constexpr std::uint64_t kLandlockIoctlDev = 1ULL << 15;          // ABI 5
inline constexpr std::uint64_t kLandlockScopeAbstractUnix = 1ULL << 0;  // ABI 6
inline constexpr std::uint64_t kLandlockScopeSignal = 1ULL << 1;        // ABI 6
struct LandlockRuleset {
  std::uint64_t handled_fs, handled_net, scoped;
};
struct [[gnu::packed]] LandlockPathRule {
  std::uint64_t allowed;
  std::int32_t parent_fd;
};
// ABI 0 is a kernel without Landlock. The structure grew with ABI 4 (net) and 6 (scoped); older kernels refuse a larger
// one.
inline constexpr std::size_t landlock_ruleset_size(int abi) { return abi >= 6 ? 24 : abi >= 4 ? 16 : 8; }
inline int landlock_create_ruleset(const LandlockRuleset* attr, std::size_t size, unsigned flags) noexcept {
  return static_cast<int>(::syscall(444, attr, size, flags));
}
inline int landlock_add_path(int ruleset, const LandlockPathRule& rule) noexcept {
  return static_cast<int>(::syscall(445, ruleset, 1 /* PATH_BENEATH */, &rule, 0U));
}
inline int landlock_restrict_self(int ruleset) noexcept { return static_cast<int>(::syscall(446, ruleset, 0U)); }

}  // namespace pctx::abi
