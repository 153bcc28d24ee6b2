// Takes memory in one of several ways: hog KIND MEBIBYTES [SECONDS]. Prints "held N" when it has all of it, and keeps
// it for so long that a limit that is checked now and then has its chance; exits with 3 when the kernel refuses.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const size_t kMebibyte = 1 << 20;

static void refuse(const char* what) {
  printf("refused %s %d\n", what, errno);
  fflush(stdout);
  _exit(3);
}

static void* take(size_t size, int flags, int fd) {
  char* at = mmap(0, size, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED) refuse("mmap");
  memset(at, 1, size);
  return at;
}

static void write_file(const char* path, int mebibytes) {
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0) refuse("open");
  unlink(path);
  char* block = calloc(1, kMebibyte);
  for (int i = 0; i < mebibytes; ++i)
    if (write(fd, block, kMebibyte) != (ssize_t)kMebibyte) refuse("write");
}

// Shared pages whose mappings are dropped again: no process has them, the shared object still does.
static void park_shared(int mebibytes, int fd, int flags) {
  for (int i = 0; i < mebibytes; i += 4) {
    char* at = take(4 * kMebibyte, MAP_SHARED | flags, fd);
    munmap(at + 4096, 4 * kMebibyte - 4096);
    madvise(at, 4096, MADV_DONTNEED);
  }
}

// We keep what we have, and end as the child does.
static void go_on_in_a_child(void) {
  pid_t pid = fork();
  if (pid < 0) refuse("fork");
  if (pid == 0) return;
  int status;
  waitpid(pid, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
}

static void park_sockets(int mebibytes) {
  size_t held = 0;
  static char block[65536];
  for (;;) {
    int ends[2];
    if (held >= mebibytes * kMebibyte) return;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) {
      // Out of descriptors: a child with a table of its own goes on, and we keep ours.
      if (errno != EMFILE) refuse("socketpair");
      go_on_in_a_child();
      closefrom(3);
      continue;
    }
    for (int side = 0; side < 2; ++side) {
      ssize_t put;
      while ((put = write(ends[side], block, sizeof block)) > 0) held += put;
    }
  }
}

static struct sockaddr_in bound(int fd, int last) {
  struct sockaddr_in at = {.sin_family = AF_INET};
  at.sin_addr.s_addr = htonl(0x7f000000 + last);
  socklen_t size = sizeof at;
  if (fd < 0 || bind(fd, (void*)&at, size) != 0 || getsockname(fd, (void*)&at, &size) != 0) refuse("socket");
  return at;
}

static int connected(const struct sockaddr_in* to) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) refuse("socket");
  if (connect(fd, (void*)to, sizeof *to) != 0) refuse("connect");
  return fd;
}

// Connections that nobody accepts, so many that at `each` bytes they are all of it. Closed again: the data that was
// sent and the other end stay with the kernel, and no descriptor is left of them.
static void park_connections(size_t size, size_t each, size_t send_each) {
  static char block[65536];
  struct sockaddr_in to;
  const int in_one = 1000;  // a listener takes 4096
  for (size_t i = 0; i < size / each; ++i) {
    if (i % in_one == 0) {
      int listener = socket(AF_INET, SOCK_STREAM, 0), small = 1;
      if (send_each != 0) setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
      to = bound(listener, 1 + i / in_one);
      if (listen(listener, 4096) != 0) refuse("listen");
    }
    int fd = connected(&to);
    if (send_each != 0) send(fd, block, send_each, MSG_DONTWAIT);
    close(fd);
  }
}

static void fill_tcp(size_t size) {
  static char block[65536];
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in to = bound(listener, 1);
  if (listen(listener, 4096) != 0) refuse("listen");
  for (size_t held = 0; held < size;) {
    int fd = connected(&to);
    ssize_t put;
    while ((put = send(fd, block, sizeof block, MSG_DONTWAIT)) > 0) held += put;
  }
}

static void fill_udp(size_t size) {
  static char block[60000];
  for (size_t held = 0; held < size;) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), big = 1 << 30;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
    struct sockaddr_in to = bound(fd, 1);
    unsigned memory[9] = {0}, before;
    do {
      before = memory[0];
      socklen_t got = sizeof memory;
      sendto(fd, block, sizeof block, MSG_DONTWAIT, (void*)&to, sizeof to);
      if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &got) != 0) refuse("getsockopt");
    } while (memory[0] > before);
    held += memory[0];
  }
}

// A list of mappings of it is longer than whoever reads it may expect.
static int long_name(void) {
  char name[256] = "/tmp/";
  memset(name + 5, 'n', 200);
  int fd = open(name, O_RDWR | O_CREAT, 0600);
  if (fd < 0) refuse("open");
  return fd;
}

// Mappings of their own, page for page: one of two may be read. 128 bytes is less than the kernel has for each.
static void park_mappings(size_t size, int file) {
  size_t left = size / 128;
  while (left > 0) {
    const size_t here = left < 60000 ? left : 60000;
    left -= here;
    char* at = mmap(0, here * 4096, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
    if (at == MAP_FAILED) refuse("mmap");
    for (size_t i = 0; i < here; i += 2)
      if (mprotect(at + i * 4096, 4096, PROT_READ) != 0) refuse("mprotect");
    if (left == 0) return;
    // A process has so many at most: a child goes on.
    go_on_in_a_child();
    munmap(at, here * 4096);
  }
}

// Mappings that were written to, in a row of processes: in each, the kernel has 64 bytes per mapping for every one
// before it. The pages are given back.
static void park_ancestry(size_t size) {
  const int row = 56;
  const size_t count = size / 64 / (row * row / 2);
  char* at = mmap(0, count * 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) refuse("mmap");
  for (size_t i = 0; i < count; ++i)
    if (mprotect(at + i * 8192, 4096, PROT_READ | PROT_WRITE) != 0) refuse("mprotect");
  for (int generation = 0; generation < row; ++generation) {
    for (size_t i = 0; i < count; ++i) {
      at[i * 8192] = 1;
      madvise(at + i * 8192, 4096, MADV_DONTNEED);
    }
    if (generation + 1 < row) go_on_in_a_child();
  }
}

// An open file of /proc keeps the page that it was read through.
static void park_proc_files(size_t size) {
  char byte;
  for (size_t held = 0; held < size; held += 4096) {
    int fd = open("/proc/self/maps", O_RDONLY);
    if (fd >= 0) {
      if (read(fd, &byte, 1) != 1) refuse("read");
      continue;
    }
    if (errno != EMFILE) refuse("open");
    go_on_in_a_child();
    closefrom(3);
  }
}

// One byte read per 2 MiB: the data is the shared page of zeros, the tables are real memory.
static void park_page_tables(int mebibytes) {
  const size_t count = mebibytes * kMebibyte / 4096, span = count << 21;
  volatile char* at = mmap(0, span, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) refuse("mmap");
  madvise((void*)at, span, MADV_NOHUGEPAGE);
  for (size_t i = 0; i < count; ++i) (void)at[i << 21];
}

struct Hidden {
  int mebibytes, stays;
  time_t until;
  pid_t parent;
};

static void done_hiding(const struct Hidden* hidden) {
  printf("held %d\n", hidden->mebibytes);
  exit(0);
}

// The first thread is gone, and with it what /proc shows of the process.
static void* take_in_thread(void* argument) {
  const struct Hidden* hidden = argument;
  usleep(200000);
  take(hidden->mebibytes * kMebibyte, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  sleep(hidden->stays);
  done_hiding(hidden);
  return 0;
}

// No thread lives long enough to be looked at, and each takes a little.
static void* hand_on(void* argument) {
  const struct Hidden* hidden = argument;
  static int taken;
  if (taken < hidden->mebibytes) take(kMebibyte, MAP_PRIVATE | MAP_ANONYMOUS, -1), ++taken;
  if (taken == hidden->mebibytes && time(0) >= hidden->until) done_hiding(hidden);
  pthread_t next;
  while (pthread_create(&next, 0, hand_on, argument) != 0) {
  }
  pthread_detach(next);
  return 0;
}

// The same with processes that have their memory in common, beside so many others that a list of them is old when its
// end is read.
static int hop(void* argument) {
  const struct Hidden* hidden = argument;
  static char stacks[64][16384];
  static int taken, hops, stack_number;
  if (taken < hidden->mebibytes && ++hops % 20 == 0) take(kMebibyte, MAP_PRIVATE | MAP_ANONYMOUS, -1), ++taken;
  if (taken == hidden->mebibytes && time(0) >= hidden->until) {
    dprintf(1, "held %d\n", hidden->mebibytes);
    kill(hidden->parent, SIGTERM);
    syscall(SYS_exit, 0);
  }
  char* stack = stacks[++stack_number % 64] + sizeof *stacks;
  while (clone(hop, stack, CLONE_VM | SIGCHLD, argument) < 0) {
  }
  syscall(SYS_exit, 0);
  return 0;
}

static void hop_beside(int others, int mebibytes, int stays) {
  static struct Hidden hidden;
  hidden = (struct Hidden){mebibytes, stays, time(0) + stays, getpid()};
  for (int i = 0; i < others; ++i)
    if (fork() == 0) prctl(PR_SET_PDEATHSIG, SIGKILL), pause();
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // outside a box nobody else may have the time for so many
  if (fork() == 0) hop(&hidden);
  while (wait(0) > 0) {
  }
}

static void hide(void* (*how)(void*), int mebibytes, int stays) {
  static struct Hidden hidden;
  hidden = (struct Hidden){mebibytes, stays, time(0) + stays, 0};
  pthread_t first;
  if (pthread_create(&first, 0, how, &hidden) != 0) refuse("clone");
  pthread_detach(first);
  syscall(SYS_exit, 0);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const char* kind = argv[1];
  const int n = atoi(argv[2]);
  const size_t size = n * kMebibyte;
  // For a watchdog that looks every few hundred milliseconds on a slow machine.
  const int stays = argc > 3 ? atoi(argv[3]) : 5;
  if (!strcmp(kind, "private"))
    take(size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  else if (!strcmp(kind, "shared"))
    take(size, MAP_SHARED | MAP_ANONYMOUS, -1);
  else if (!strcmp(kind, "tmp"))
    write_file("/tmp/hog", n);
  else if (!strcmp(kind, "shm"))
    write_file("/dev/shm/hog", n);
  else if (!strcmp(kind, "home"))
    write_file("/home/sandbox/hog", n);
  else if (!strcmp(kind, "memfd")) {
    int fd = syscall(SYS_memfd_create, "hog", 0);
    if (fd < 0) refuse("memfd_create");
    if (ftruncate(fd, size) != 0) refuse("ftruncate");
    take(size, MAP_SHARED, fd);
  } else if (!strcmp(kind, "sysv")) {
    int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
    if (id < 0) refuse("shmget");
    char* at = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    memset(at, 1, size);
  } else if (!strcmp(kind, "children")) {
    // Each child alone is below the limit.
    for (int i = 0; i < 4; ++i) {
      pid_t pid = fork();
      if (pid < 0) refuse("fork");
      if (pid == 0) take(size / 4, MAP_PRIVATE | MAP_ANONYMOUS, -1), sleep(stays), _exit(0);
    }
    for (int i = 0; i < 4; ++i) {
      int status = 0;
      wait(&status);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) pause();  // the group must go down with the one
    }
  } else if (!strcmp(kind, "parked"))
    park_shared(n, -1, MAP_ANONYMOUS);
  else if (!strcmp(kind, "parked-zero"))
    park_shared(n, open("/dev/zero", O_RDWR), 0);
  else if (!strcmp(kind, "sockets"))
    park_sockets(n);
  else if (!strcmp(kind, "tables"))
    park_page_tables(n);
  else if (!strcmp(kind, "thread"))
    hide(take_in_thread, n, stays);
  else if (!strcmp(kind, "relay"))
    hide(hand_on, n, stays);
  else if (!strcmp(kind, "hops"))
    hop_beside(50, n, stays);
  else if (!strcmp(kind, "ancestry"))
    park_ancestry(size);
  else if (!strcmp(kind, "proc-files"))
    park_proc_files(size);
  else if (!strcmp(kind, "tcp"))
    fill_tcp(size);
  else if (!strcmp(kind, "udp"))
    fill_udp(size);
  else if (!strcmp(kind, "unaccepted"))
    park_connections(size, 4096, 0);
  else if (!strcmp(kind, "orphans"))
    park_connections(size, 16384, 16384);
  else if (!strcmp(kind, "mappings"))
    park_mappings(size, -1);
  else if (!strcmp(kind, "named-mappings"))
    park_mappings(size, long_name());
  else
    return 2;
  if (strcmp(kind, "children")) sleep(stays);
  printf("held %d\n", n);
  return 0;
}
