// Lets the kernel keep data that was received by sockets which it does not list: unlisted reset|unbound MIB SECONDS.
// Prints "held" once it has as much, and keeps it for so long.
//   reset    connections whose other end has sent a reset
//   unbound  UDP sockets that have given up their port
#define _GNU_SOURCE
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static char block[60000];

static void refuse(const char* what) {
  perror(what);
  _exit(3);
}

static struct sockaddr_in bound(int fd) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  if (fd < 0 || bind(fd, (void*)&at, size) != 0 || getsockname(fd, (void*)&at, &size) != 0) refuse("bind");
  return at;
}

// As the socket itself says.
static size_t received(int fd) {
  unsigned memory[9] = {0};
  socklen_t size = sizeof memory;
  if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size) != 0) refuse("getsockopt");
  return memory[0];
}

static size_t reset(int listener, const struct sockaddr_in* to) {
  const struct linger hard = {1, 0};
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (void*)to, sizeof *to) != 0) refuse("connect");
  const int accepted = accept(listener, NULL, NULL);
  if (accepted < 0) refuse("accept");
  while (send(fd, block, sizeof block, MSG_DONTWAIT) > 0) {
  }
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close(fd);
  return received(accepted);
}

static size_t unbind(void) {
  const struct sockaddr none = {.sa_family = AF_UNSPEC};
  const int fd = socket(AF_INET, SOCK_DGRAM, 0), sender = socket(AF_INET, SOCK_DGRAM, 0);
  struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9)};
  socklen_t size = sizeof any;
  // Sending gives it a port of the kernel's choice, which goes with the address.
  if (fd < 0 || sendto(fd, "", 0, 0, (void*)&any, size) < 0 || getsockname(fd, (void*)&any, &size) != 0) refuse("send");
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  size_t before;
  do {
    before = received(fd);
    sendto(sender, block, sizeof block, MSG_DONTWAIT, (void*)&any, sizeof any);
  } while (received(fd) > before);
  if (connect(fd, &none, sizeof none) != 0) refuse("connect");
  close(sender);
  return received(fd);
}

// With a table of descriptors of its own.
static void go_on_in_a_child(void) {
  const pid_t pid = fork();
  int status = 0;
  if (pid < 0) refuse("fork");
  if (pid == 0) return closefrom(3);
  waitpid(pid, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const size_t wanted = (size_t)atoi(argv[2]) << 20;
  size_t held = 0;
  while (held < wanted) {
    struct sockaddr_in to;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    to = bound(listener);
    if (listen(listener, 16) != 0) refuse("listen");
    for (int i = 0; i < 200 && held < wanted; ++i) held += strcmp(argv[1], "reset") == 0 ? reset(listener, &to) : unbind();
    if (held < wanted) go_on_in_a_child();
  }
  puts("held");
  fflush(stdout);
  sleep(atoi(argv[3]));
  return 0;
}
