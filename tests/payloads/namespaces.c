// The positive control of the refused namespace flags: makes each kind of namespace and prints "name errno".
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
  const unsigned long flags[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS};
  for (int i = 0; i < 6; ++i)
    for (int high = 0; high < 2; ++high) {
      long pid = syscall(SYS_clone, flags[i] | SIGCHLD | (high ? 1UL << 40 : 0), 0, 0, 0, 0);
      if (pid == 0) _exit(0);
      printf("clone:%lx:%d %d\n", flags[i], high, pid < 0 ? errno : 0);
      if (pid > 0) waitpid(pid, 0, __WALL);
    }
  return 0;
}
