#include "box/closer.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include "sys/files.h"
#include "wire/packet.h"

namespace pctx {
namespace {

// It ends with its owner, whose end of the socket it waits for.
[[noreturn]] void close_for_caller(const Fd& socket) {
  ::setsid();
  (void)::prctl(PR_SET_NAME, "pctx-closer");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  const int kept[] = {socket.get()};
  sys::close_all_but(kept);
  for (;;) {
    wire::Packet packet;  // closed at the end of each round
    pollfd told{socket.get(), POLLIN, 0};
    (void)::poll(&told, 1, -1);
    if (wire::receive(socket.get(), packet) == wire::Received::end) ::_exit(0);
  }
}

}  // namespace

Closer::~Closer() {
  socket_.reset();
  if (pid_ > 0)
    while (::waitpid(pid_, nullptr, WNOHANG) < 0 && errno == EINTR) {
    }
}

Result<void> Closer::start() {
  if (socket_) return {};
  return replace();
}

Result<void> Closer::replace() {
  if (pid_ > 0) {
    // It has closed its end, so it is dead or about to be; one that is not must not stay.
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }
  socket_.reset();
  auto [ours, theirs] = PCTX_TRY(wire::pair(SOCK_SEQPACKET));
  const pid_t pid = ::fork();
  if (pid < 0) return os_error("cannot start a process that closes sockets");
  if (pid == 0) {
    ours.reset();
    close_for_caller(theirs);
  }
  pid_ = pid;
  socket_ = std::move(ours);
  return {};
}

void Closer::close(int fd) {
  if (!socket_ || wire::send(socket_.get(), "c", {fd})) return;
  if ((errno == EPIPE || errno == ECONNRESET) && replace()) (void)wire::send(socket_.get(), "c", {fd});
}

}  // namespace pctx
