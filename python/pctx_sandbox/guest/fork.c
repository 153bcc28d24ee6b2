/* How a Zygote forks a Worker into a box that was made for it. Loaded with ctypes or linked; knows nothing of Python.
 *
 * A process cannot move itself into a pid namespace, only its children: so a middle process enters the box's namespaces
 * and forks there. It shares our memory while we are suspended (CLONE_VM | CLONE_VFORK), which saves copying the
 * interpreter twice; the Worker is a copy that finds our own stack in it and returns on it as if from fork(). */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_CAP_AMBIENT
#define PR_CAP_AMBIENT 47
#define PR_CAP_AMBIENT_CLEAR_ALL 4
#endif

struct job {
  const int* namespaces; /* of the box, the user namespace first: it brings the right to enter the others */
  int namespace_count;
  const int* tasks; /* cgroup v1: what to join by */
  int task_count;
  int error;
  jmp_buf here;
};

static char middle_stack[128 * 1024] __attribute__((aligned(64)));

static int middle(void* argument) {
  struct job* job = argument;
  for (int i = 0; i < job->task_count; ++i)
    if (write(job->tasks[i], "0", 1) != 1) {
      job->error = errno;
      _exit(1);
    }
  /* The filter asks for the kind of each. On the host's network there is one namespace less to enter. */
  static const int kinds[] = {CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET, CLONE_NEWIPC,
                              CLONE_NEWUTS,  CLONE_NEWCGROUP, CLONE_NEWNS};
  const int all = sizeof kinds / sizeof *kinds;
  for (int i = 0; i < job->namespace_count; ++i) {
    /* A device stands for one that this host refuses to make: the box has none of its own. */
    struct stat status;
    /* By number: the function is one of glibc 2.33. */
    if (syscall(SYS_fstat, job->namespaces[i], &status) == 0 && S_ISCHR(status.st_mode)) continue;
    if (setns(job->namespaces[i], kinds[job->namespace_count < all && i >= 2 ? i + 1 : i]) != 0) {
      job->error = errno;
      _exit(1);
    }
  }
  pid_t worker = fork();
  if (worker == 0) longjmp(job->here, 1);
  job->error = worker < 0 ? errno : 0;
  _exit(worker < 0);
}

/* Entering a user namespace gives every capability in it. The Broker looks whether they are gone before it lends the
 * Worker to anybody. */
static int give_up_rights(void) {
  for (int cap = 0; cap < 64; ++cap)
    if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0 && errno == EINVAL) break;
  const unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
                             SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
                             SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
  if (prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) != 0) return -errno;
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return -errno;
  if (syscall(SYS_capset, &header, none) != 0) return -errno;
  return 0;
}

/* 1 in the Zygote, 0 in the Worker, -errno if there is none. */
__attribute__((visibility("default"))) int pctx_fork(const int* namespaces, int namespace_count, const int* tasks,
                                                     int task_count) {
  static struct job job;
  job = (struct job){
      .namespaces = namespaces, .namespace_count = namespace_count, .tasks = tasks, .task_count = task_count};
  if (setjmp(job.here) != 0) {
    if (give_up_rights() != 0) _exit(126); /* nobody may take this process for the Zygote */
    return 0;
  }
  const pid_t child = clone(middle, middle_stack + sizeof middle_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &job);
  if (child < 0) return -errno;
  while (waitpid(child, NULL, __WALL) < 0 && errno == EINTR) {
  }
  return job.error != 0 ? -job.error : 1;
}
