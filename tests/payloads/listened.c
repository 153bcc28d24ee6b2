// Runs a command under a filter that has a listener, as some container runtimes do. The filter allows everything, and
// this process keeps the listener open until the command has ended: a closed listener would be in nobody's way.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
  struct sock_fprog program = {1, &allow};
  // Where it is permitted, without no_new_privs: newuidmap below must still gain its privileges.
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program) < 0) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program) < 0) {
      perror("seccomp");
      return 3;
    }
  }
  const pid_t pid = fork();
  if (pid == 0) {
    execv(argv[1], argv + 1);
    perror("execv");
    _exit(3);
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) return 3;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
