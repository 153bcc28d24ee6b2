// Prints the six ids of the process; with an argument, of that program instead.
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc > 1) {
    char* const next[] = {argv[1], 0};
    execv(argv[1], next);
    perror("execv");
    return 3;
  }
  uid_t ids[3];
  gid_t groups[3];
  getresuid(&ids[0], &ids[1], &ids[2]);
  getresgid(&groups[0], &groups[1], &groups[2]);
  printf("%d %d %d %d %d %d\n", ids[0], ids[1], ids[2], groups[0], groups[1], groups[2]);
  return 0;
}
