// Makes refused calls as fast as it can, from many threads, for ever: whoever answers them must not be kept busy.
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

static void* flood(void* unused) {
  for (;;) syscall(SYS_mount, 0, "/flood", 0, 0, 0);
  return unused;
}

int main(void) {
  pthread_t thread;
  for (int i = 0; i < 16; ++i) pthread_create(&thread, 0, flood, 0);
  flood(0);
  return 0;
}
