// Fills sockets whose other end it closes: orphans PROCESSES stream|packet [BYTES]. Each message has BYTES bytes, 1 by
// default. Prints "had N", the number of messages, once they wait, and holds them for three seconds.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char** words) {
  if (count < 3) return 2;
  const int processes = atoi(words[1]), type = strcmp(words[2], "packet") == 0 ? SOCK_SEQPACKET : SOCK_STREAM;
  const size_t size = count > 3 ? (size_t)atoi(words[3]) : 1;
  int told[2];
  if (pipe(told) != 0) return 3;
  for (int i = 0; i < processes; ++i)
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, 9);
      long sent = 0;
      int ends[2];
      for (int k = 0; k < 480 && socketpair(AF_UNIX, type, 0, ends) == 0; ++k) {
        while (send(ends[1], "x", size, MSG_DONTWAIT) == (ssize_t)size) ++sent;
        close(ends[1]);
      }
      (void)!write(told[1], &sent, sizeof sent);
      for (;;) pause();
    }
  long all = 0, sent = 0;
  for (int i = 0; i < processes && read(told[0], &sent, sizeof sent) == sizeof sent; ++i) all += sent;
  printf("had %ld\n", all);
  fflush(stdout);
  sleep(3);
  return 0;
}
