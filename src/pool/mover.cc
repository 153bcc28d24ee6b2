#include "pool/mover.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include <poll.h>

#include <fmt/format.h>

#include "sys/files.h"
#include "wire/packet.h"

namespace pctx {
namespace {

int join(int directory, pid_t pid) {
  const int procs = ::openat(directory, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (procs < 0) return errno;
  const std::string text = std::to_string(pid);
  const int error = ::write(procs, text.data(), text.size()) < 0 ? errno : 0;
  ::close(procs);
  return error;
}

// A copy of the Broker, which has one thread: nothing is half done in it.
[[noreturn]] void run_mover(int socket) {
  sys::close_all_but({&socket, 1});
  (void)::prctl(PR_SET_NAME, "pctx-mover");
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) {
    pollfd order{socket, POLLIN, 0};
    if (::poll(&order, 1, -1) < 0 && errno != EINTR) ::_exit(1);
    wire::Packet packet;
    const wire::Received got = wire::receive(socket, packet);
    if (got == wire::Received::nothing) continue;
    Mover::Ticket ticket = 0;
    pid_t pid = 0;
    if (got != wire::Received::packet || packet.fds.size() != 1 ||
        std::sscanf(packet.text.c_str(), "%lu %d", &ticket, &pid) != 2)
      ::_exit(0);
    if (!wire::send(socket, fmt::format("{} {}", ticket, join(packet.fds[0].get(), pid)))) ::_exit(0);
  }
}

}  // namespace

Mover::~Mover() { stop(); }

void Mover::start() {
  auto ends = wire::pair(SOCK_SEQPACKET);
  if (!ends) return;
  pid_ = ::fork();
  if (pid_ == 0) run_mover(ends->second.get());
  if (pid_ < 0) return;
  socket_ = std::move(ends->first);
  loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t) { on_answer(); });
}

void Mover::stop() {
  if (!socket_) return;
  loop_.forget(socket_.get());
  socket_.reset();
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  for (auto& [ticket, done] : std::exchange(waiting_, {})) done(EPIPE);
}

Mover::Ticket Mover::move(int directory, pid_t pid, std::function<void(int)> done) {
  if (!socket_) start();
  waiting_.emplace(++last_, std::move(done));
  const Ticket ticket = last_;
  if (!socket_ || !wire::send(socket_.get(), fmt::format("{} {}", ticket, pid), {directory})) {
    const int error = errno;
    // Later: whoever asks does not expect the answer before the ticket.
    loop_.after({}, [this, ticket, error] {
      if (auto node = waiting_.extract(ticket)) node.mapped()(error != 0 ? error : EPIPE);
    });
  }
  return ticket;
}

void Mover::forget(Ticket& ticket) { waiting_.erase(std::exchange(ticket, 0)); }

void Mover::on_answer() {
  wire::Packet packet;
  const wire::Received got = wire::receive(socket_.get(), packet);
  if (got == wire::Received::nothing) return;
  if (got != wire::Received::packet) return stop();
  Ticket ticket = 0;
  int error = 0;
  if (std::sscanf(packet.text.c_str(), "%lu %d", &ticket, &error) != 2) return stop();
  if (auto node = waiting_.extract(ticket)) node.mapped()(error);
}

}  // namespace pctx
