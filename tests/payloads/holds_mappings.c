// Changes its mappings without end, by threads that give way to everything else, while its other processes want the
// same processor: who waits for its mappings to stand still waits for as long as this runs. Then makes calls that are
// refused, with a path in its memory.
//
// usage: holds_mappings MIB PROCESSES
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static size_t size;
static char* area;
static volatile int begun, busy;

static void on_one_processor(void) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
}

static void* change(void* unused) {
  const struct sched_param none = {0};
  if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) perror("SCHED_IDLE");
  begun = 1;
  while (!busy) usleep(1000);
  for (;;) {
    mprotect(area, size, PROT_READ);
    mprotect(area, size, PROT_READ | PROT_WRITE);
  }
  return unused;
}

static void* ask(void* unused) {
  static const char path[] = "/asked";
  syscall(SYS_chroot, path);  // its page is there, and so is whatever it takes to say so
  dprintf(1, "asked\n");
  while (!busy) usleep(1000);
  usleep(1000000);
  dprintf(1, "asking\n");
  for (;;) {
    syscall(SYS_chroot, path);
    usleep(1000);
  }
  return unused;
}

int main(int count, char** words) {
  if (count != 3) return 2;
  size = (size_t)atol(words[1]) << 20;
  on_one_processor();
  int gate[2];
  if (pipe(gate) != 0) return 3;
  for (int left = atoi(words[2]); left > 0; --left)
    if (fork() == 0) {
      char byte;
      prctl(PR_SET_PDEATHSIG, 9);
      close(gate[1]);
      (void)!read(gate[0], &byte, 1);
      for (;;) {
      }
    }
  area = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(area, size, MADV_NOHUGEPAGE);
  memset(area, 1, size);
  pthread_t thread;
  pthread_create(&thread, 0, ask, 0);
  for (int i = 0; i < 12; ++i) pthread_create(&thread, 0, change, 0);
  while (!begun) usleep(1000);
  usleep(200000);
  busy = 1;
  usleep(300000);
  close(gate[1]);
  for (;;) pause();
}
