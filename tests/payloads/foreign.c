// System calls by other doors than the 64-bit one: a filter that looks at numbers only takes them for something else.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
#ifdef __x86_64__
  if (argc > 1 && strcmp(argv[1], "i386") == 0) {
    long result;
    asm volatile("int $0x80" : "=a"(result) : "a"(20L /* getpid */) : "r8", "r9", "r10", "r11", "memory");
    printf("%ld\n", result);
    return result == getpid() ? 0 : 3;
  }
  if (argc > 1 && strcmp(argv[1], "x32") == 0) {
    long result = syscall(39 | 0x40000000);
    printf("%ld %d\n", result, errno);
    return result == getpid() ? 0 : 3;
  }
#endif
  return 4;  // this machine has no such door
}
