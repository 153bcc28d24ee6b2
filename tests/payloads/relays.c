// Children with as much memory as their parent has, each of which goes on as a fork of itself all the time, beside
// threads of the parent that want a processor and do not get it: relays MIB CHILDREN SECONDS. Prints "held" at the end.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void rest(long milliseconds) {
  const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&time, 0);
}

static char* fill(size_t size, int with) {
  char* at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) _exit(3);
  memset(at, with, size);
  return at;
}

static void* spin(void* unused) {
  setpriority(PRIO_PROCESS, 0, 19);
  for (;;) {
  }
  return unused;
}

int main(int count, char** words) {
  if (count != 4) return 2;
  const size_t size = (size_t)atol(words[1]) << 20;
  const int children = atoi(words[2]);
  signal(SIGCHLD, SIG_IGN);
  madvise(fill(size, 1), size, MADV_DONTFORK);
  int told[2];
  if (pipe(told) != 0) return 3;
  for (int i = 0; i < children; ++i) {
    if (fork() == 0) {
      fill(size, 2 + i);
      (void)!write(told[1], "x", 1);
      for (;;) {
        rest(12);
        if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) > 0) _exit(0);
      }
    }
    pthread_t thread;
    for (int k = 0; i == 0 && k < children; ++k) pthread_create(&thread, 0, spin, 0);
    char byte;
    (void)!read(told[0], &byte, 1);
  }
  rest(1000 * atol(words[3]));
  printf("held\n");
  return 0;
}
