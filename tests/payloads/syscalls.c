// Makes each dangerous system call once, with arguments that do no harm where it is allowed, and prints "name errno".
// Outside of a box it is only run with every right taken away by the caller, or not at all.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __NR_io_uring_setup
#define __NR_io_uring_setup 425
#define __NR_io_uring_enter 426
#define __NR_io_uring_register 427
#endif
enum { kOpenTree = 428, kMoveMount = 429, kFsopen = 430, kFsconfig = 431, kFsmount = 432, kFspick = 433 };
enum { kClone3 = 435, kPidfdGetfd = 438, kProcessMadvise = 440, kMountSetattr = 442, kMemfdSecret = 447 };
enum { kCachestat = 451, kStatmount = 457, kListmount = 458, kLsmSetSelfAttr = 460, kOpenTreeAttr = 467 };

struct Try {
  const char* name;
  long number, a, b, c, d;
};

#define BAD 8  // an address that is never mapped: a call that reads memory fails with EFAULT
static const struct Try kTries[] = {
    {"mount", SYS_mount, BAD, BAD, BAD, 0},
    {"umount2", SYS_umount2, BAD, 0, 0, 0},
    {"pivot_root", SYS_pivot_root, BAD, BAD, 0, 0},
    {"chroot", SYS_chroot, BAD, 0, 0, 0},
    {"setns", SYS_setns, -1, 0, 0, 0},
    {"open_tree", kOpenTree, -1, BAD, 0, 0},
    {"move_mount", kMoveMount, -1, BAD, -1, BAD},
    {"fsopen", kFsopen, BAD, 0, 0, 0},
    {"fsconfig", kFsconfig, -1, 0, 0, 0},
    {"fsmount", kFsmount, -1, 0, 0, 0},
    {"fspick", kFspick, -1, BAD, 0, 0},
    {"mount_setattr", kMountSetattr, -1, BAD, 0, 0},
    {"open_tree_attr", kOpenTreeAttr, -1, BAD, 0, 0},
    {"statmount", kStatmount, BAD, BAD, 0, 0},
    {"listmount", kListmount, BAD, BAD, 0, 0},
    {"io_uring_setup", __NR_io_uring_setup, 1, BAD, 0, 0},
    {"io_uring_enter", __NR_io_uring_enter, -1, 0, 0, 0},
    {"io_uring_register", __NR_io_uring_register, -1, 0, 0, 0},
    {"io_setup", SYS_io_setup, 1, BAD, 0, 0},
    {"bpf", SYS_bpf, -1, BAD, 0, 0},
    {"userfaultfd", SYS_userfaultfd, -1, 0, 0, 0},
    {"perf_event_open", SYS_perf_event_open, BAD, 0, -1, -1},
    {"keyctl", SYS_keyctl, -1, 0, 0, 0},
    {"add_key", SYS_add_key, BAD, BAD, 0, 0},
    {"request_key", SYS_request_key, BAD, BAD, 0, 0},
    {"ptrace", SYS_ptrace, 16 /* attach */, 1, 0, 0},
    {"process_vm_readv", SYS_process_vm_readv, 1, 0, 0, 0},
    {"process_vm_writev", SYS_process_vm_writev, 1, 0, 0, 0},
    {"process_madvise", kProcessMadvise, -1, 0, 0, 0},
    {"pidfd_getfd", kPidfdGetfd, -1, 0, 0, 0},
    {"kcmp", SYS_kcmp, 1, 1, 0, 0},
    {"kexec_load", SYS_kexec_load, 0, 99, 0, -1},
    {"kexec_file_load", SYS_kexec_file_load, -1, -1, 0, 0},
    {"init_module", SYS_init_module, BAD, 0, BAD, 0},
    {"finit_module", SYS_finit_module, -1, BAD, 0, 0},
    {"delete_module", SYS_delete_module, BAD, 0, 0, 0},
    {"open_by_handle_at", SYS_open_by_handle_at, -1, BAD, 0, 0},
    {"name_to_handle_at", SYS_name_to_handle_at, -1, BAD, BAD, BAD},
    {"clock_settime", SYS_clock_settime, -1, BAD, 0, 0},
    {"clock_adjtime", SYS_clock_adjtime, -1, BAD, 0, 0},
    {"settimeofday", SYS_settimeofday, BAD, BAD, 0, 0},
    {"adjtimex", SYS_adjtimex, BAD, 0, 0, 0},
    {"reboot", SYS_reboot, 0, 0, 0, 0},
    {"swapon", SYS_swapon, BAD, 0, 0, 0},
    {"swapoff", SYS_swapoff, BAD, 0, 0, 0},
    {"acct", SYS_acct, BAD, 0, 0, 0},
    {"quotactl", SYS_quotactl, -1, BAD, 0, 0},
    {"syslog", SYS_syslog, 3, BAD, 8, 0},
    {"vhangup", SYS_vhangup, 0, 0, 0, 0},
    {"sethostname", SYS_sethostname, BAD, 1, 0, 0},
    {"setdomainname", SYS_setdomainname, BAD, 1, 0, 0},
    {"fanotify_init", SYS_fanotify_init, -1, 0, 0, 0},
    {"memfd_secret", kMemfdSecret, -1, 0, 0, 0},
    {"cachestat", kCachestat, -1, BAD, BAD, 0},
    {"move_pages", SYS_move_pages, 1, 0, 0, 0},
    {"migrate_pages", SYS_migrate_pages, 1, 0, 0, 0},
    {"lsm_set_self_attr", kLsmSetSelfAttr, -1, BAD, 0, 0},
#ifdef __x86_64__
    {"iopl", SYS_iopl, 3, 0, 0, 0},
    {"ioperm", SYS_ioperm, 0, 1, 1, 0},
    {"modify_ldt", SYS_modify_ldt, 1, BAD, 0, 0},
#endif
};

static void show(const char* name, long result) { printf("%s %d\n", name, result < 0 ? errno : 0), fflush(stdout); }

// A namespace flag in clone: the child only ends.
static void try_clone(const char* name, unsigned long flags) {
  long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) _exit(0);
  show(name, pid);
  if (pid > 0) waitpid(pid, 0, __WALL);
}

static void try_unshare(const char* name, unsigned long flags) {
  if (fork() == 0) {
    show(name, syscall(SYS_unshare, flags));
    _exit(0);
  }
  wait(0);
}

int main(void) {
  for (unsigned i = 0; i < sizeof kTries / sizeof *kTries; ++i) {
    const struct Try* t = &kTries[i];
    show(t->name, syscall(t->number, t->a, t->b, t->c, t->d, 0, 0));
  }
  const struct {
    const char* name;
    unsigned long flag;
  } kinds[] = {{"user", CLONE_NEWUSER}, {"mnt", CLONE_NEWNS},  {"pid", CLONE_NEWPID},      {"net", CLONE_NEWNET},
               {"ipc", CLONE_NEWIPC},   {"uts", CLONE_NEWUTS}, {"cgroup", CLONE_NEWCGROUP}};
  char name[64];
  for (unsigned i = 0; i < 7; ++i) {
    // CLONE_NEWUSER first: without it the others need a capability anyway. The kernel ignores the upper half for clone
    // and unshare, so a filter that compares 64 bits is dodged by setting one there.
    const unsigned long flags = kinds[i].flag | CLONE_NEWUSER;
    snprintf(name, sizeof name, "unshare:%s", kinds[i].name), try_unshare(name, flags);
    snprintf(name, sizeof name, "unshare-high:%s", kinds[i].name), try_unshare(name, flags | 1UL << 40);
    if (flags & CLONE_NEWUSER) snprintf(name, sizeof name, "clone:%s", kinds[i].name), try_clone(name, flags);
    snprintf(name, sizeof name, "clone-high:%s", kinds[i].name), try_clone(name, flags | 1UL << 40);
  }
  unsigned long args[11] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
  long pid = syscall(kClone3, args, sizeof args);
  if (pid == 0) _exit(0);
  show("clone3", pid);
  show("unknown", syscall(4000));
  return 0;
}
