/* A Zygote's fork that is none: the Worker runs in the Zygote's own memory (CLONE_VM) and looks right from everywhere
 * else. Takes the place of _fork.so; built as a shared library. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int boxes[7], ends[4];
static char stacks[2][256 * 1024] __attribute__((aligned(64)));

static int worker(void* unused) {
  for (int cap = 0; cap < 64; ++cap) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  syscall(SYS_capset, &header, none);
  dup2(ends[0], 0);
  dup2(ends[2], 1);
  dup2(ends[3], 2);
  dup2(ends[1], 3);
  syscall(SYS_close_range, 4, ~0U, 0);
  chdir("/home/sandbox");
  write(3, "R", 1);
  for (;;) pause();
}

static int middle(void* unused) {
  static const int kinds[] = {CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET, CLONE_NEWIPC,
                              CLONE_NEWUTS,  CLONE_NEWCGROUP, CLONE_NEWNS};
  for (int i = 0; i < 7; ++i)
    if (setns(boxes[i], kinds[i]) != 0) _exit(1);
  _exit(clone(worker, stacks[1] + sizeof stacks[1], CLONE_VM | SIGCHLD, NULL) < 0);
}

/* As pctx_fork, but for the ends of the Worker, which the real one leaves to Python. */
int shared_fork(const int* namespaces, const int* lease) {
  for (int i = 0; i < 7; ++i) boxes[i] = namespaces[i];
  for (int i = 0; i < 4; ++i) ends[i] = lease[i];
  const pid_t child = clone(middle, stacks[0] + sizeof stacks[0], CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
  if (child < 0) return -errno;
  int status = 0;
  while (waitpid(child, &status, __WALL) < 0 && errno == EINTR) {
  }
  return status == 0 ? 1 : -ECHILD;
}
