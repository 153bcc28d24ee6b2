// Makes the kernel keep something that no memory limit counts: uncharged KIND [NUMBER]. Prints "had N", where N is what
// there is of it, or "refused CALL ERRNO" and exits with 3.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static void refuse(const char* what) {
  printf("refused %s %d\n", what, errno);
  fflush(stdout);
  _exit(3);
}

// An access list with as many entries as fit: the kernel keeps all of them, the same user or not.
static int access_list(int size) {
  struct Entry {
    uint16_t tag, permissions;
    uint32_t id;
  };
  char* list = calloc(1, size);
  *(uint32_t*)list = 2;
  struct Entry* entry = (struct Entry*)(list + 4);
  const int most = (size - 4) / 8;
  int i = 0;
  entry[i++] = (struct Entry){1, 7, -1};
  while (i < most - 3) entry[i++] = (struct Entry){2, 7, getuid()};
  for (int tag = 4; tag <= 0x20; tag = tag == 4 ? 0x10 : tag * 2) entry[i++] = (struct Entry){tag, 7, -1};
  char folder[] = "/tmp/uncharged-XXXXXX";
  if (mkdtemp(folder) == NULL) refuse("mkdir");
  const int failed = setxattr(folder, "system.posix_acl_default", list, 4 + 8 * i, 0);
  const int code = errno;
  rmdir(folder);
  errno = code;
  if (failed) refuse("setxattr");
  return i;
}

// A policy for every other page of a file stays with the file.
static int policies(int pages) {
  char path[] = "/tmp/uncharged-XXXXXX";
  const int fd = mkstemp(path);
  unlink(path);
  if (fd < 0 || ftruncate(fd, pages * 4096l) != 0) refuse("ftruncate");
  char* at = mmap(0, pages * 4096l, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const unsigned long node = 1;
  for (int i = 0; i < pages; i += 2)
    if (syscall(SYS_mbind, at + i * 4096l, 4096, 2, &node, 8, 0) != 0) refuse("mbind");
  return pages / 2;
}

static int program(int option) {
  static struct sock_filter code[512];  // within net.core.optmem_max of older kernels
  for (int i = 0; i < 511; ++i) code[i] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_DIV | BPF_K, 3 + i);
  code[511] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
  const struct sock_fprog all = {512, code};
  const int fd = socket(AF_INET, SOCK_DGRAM, 0), one = 1;
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0) refuse("socket");
  if (setsockopt(fd, SOL_SOCKET, option, &all, sizeof all) != 0) refuse("setsockopt");
  return 512;
}

// Options whose memory the kernel keeps beside the socket, or whose number is a limit of the whole host's.
static int option(const char* name) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0), one = 1;
  if (fd < 0) refuse("socket");
  struct tcp_md5sig key = {.tcpm_keylen = 80};
  key.tcpm_addr.ss_family = AF_INET6;
  ((struct sockaddr_in6*)&key.tcpm_addr)->sin6_addr = in6addr_loopback;
  struct {
    struct in6_addr to;
    uint32_t label;
    uint8_t action, share;
    uint16_t flags, expires, linger;
    uint32_t pad;
  } label = {in6addr_loopback, 0, 0 /* IPV6_FL_A_GET */, 255 /* any */, 1 /* create */, 60, 60, 0};
  int failed = -1;
  if (strcmp(name, "zerocopy") == 0) failed = setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one);
  if (strcmp(name, "key") == 0) failed = setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key);
  if (strcmp(name, "label") == 0) failed = setsockopt(fd, IPPROTO_IPV6, 32, &label, sizeof label);
  if (strcmp(name, "sources") == 0) {
    // The interface keeps what a socket asks of a group; loopback has IPv6, and takes part in groups.
    const int datagrams = socket(AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_addr = {{{0xff, 1, [15] = 77}}}};
    struct group_source_req source = {.gsr_interface = 1};
    memcpy(&source.gsr_group, &to, sizeof to);
    to.sin6_addr = (struct in6_addr){{{0xfd, [15] = 1}}};
    memcpy(&source.gsr_source, &to, sizeof to);
    failed = setsockopt(datagrams, IPPROTO_IPV6, MCAST_JOIN_SOURCE_GROUP, &source, sizeof source);
  }
  if (failed) refuse("setsockopt");
  return 1;
}

static int nothing(void* unused) { return syscall(SYS_exit, 0); }

// A thread that waits as for the exec of a child, and waits for another thread.
static int waiting_thread(void) {
  char* stack = malloc(65536);
  if (clone(nothing, stack + 65536, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND | CLONE_VFORK, 0) < 0) refuse("clone");
  return 1;
}

static int instances(int most) {
  for (int i = 0; i < most; ++i)
    if (inotify_init1(0) < 0) return i;
  return most;
}

// MiB of huge pages that are still there when all but their first bytes have been given back.
static int huge_pages(int count) {
  const size_t size = 2 << 20;
  for (int i = 0; i < count; ++i) {
    char* at = mmap(0, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) refuse("mmap");
    char* start = (char*)(((uintptr_t)at + size - 1) & ~(size - 1));
    (void)madvise(start, size, MADV_HUGEPAGE);
    memset(start, 1, size);
    (void)madvise(start, size, 25);  // MADV_COLLAPSE
  }
  FILE* all = fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  long kilobytes = 0;
  while (all != NULL && fgets(line, sizeof line, all))
    if (sscanf(line, "AnonHugePages: %ld", &kilobytes) == 1) break;
  return kilobytes / 1024;
}

int main(int argc, char** argv) {
  const char* kind = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? atoi(argv[2]) : 0;
  int had = -1;
  if (strcmp(kind, "acl") == 0) had = access_list(number);
  if (strcmp(kind, "policies") == 0) had = policies(number);
  if (strcmp(kind, "program") == 0) had = program(number);
  if (strcmp(kind, "option") == 0) had = option(argc > 2 ? argv[2] : "");
  if (strcmp(kind, "waiting-thread") == 0) had = waiting_thread();
  if (strcmp(kind, "instances") == 0) had = instances(number);
  if (strcmp(kind, "huge-pages") == 0) had = huge_pages(number);
  if (had < 0) return 2;
  printf("had %d\n", had);
  return 0;
}
