// Holds locks on ranges of files: locks KIND FILES EACH [SECONDS]. Prints "held N" when it has had all of them for a
// while; exits with 3 when the kernel refuses. KIND: `posix`, a process's; `open`, an open file's; `orphaned`, of a
// process that shared its descriptors with us and has ended.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int files, each, command = F_SETLK;

static void refuse(const char* what) {
  printf("refused %s %d\n", what, errno);
  fflush(stdout);
  _exit(3);
}

static int take(void* unused) {
  for (int i = 0; i < files; ++i) {
    char name[] = "/tmp/locked-XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0) refuse("open");
    unlink(name);
    // Downwards: each new one comes first in the kernel's list.
    for (int j = each; j > 0; --j) {
      struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2L * j, .l_len = 1};
      if (fcntl(fd, command, &lock) != 0) refuse("fcntl");
    }
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  files = atoi(argv[2]), each = atoi(argv[3]);
  if (!strcmp(argv[1], "open")) command = F_OFD_SETLK;
  if (!strcmp(argv[1], "orphaned")) {
    static char stack[65536];
    int status;
    if (clone(take, stack + sizeof stack, CLONE_FILES | SIGCHLD, 0) < 0) refuse("clone");
    if (wait(&status) < 0 || status != 0) return 3;
  } else {
    take(0);
  }
  sleep(argc > 4 ? atoi(argv[4]) : 5);
  printf("held %d\n", files * each);
  return 0;
}
