#include "pool/errands.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <utility>

#include <poll.h>

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx {
namespace {

// "TICKET rest"; 0 if there is no number.
Errands::Ticket take_ticket(std::string& text) {
  Errands::Ticket ticket = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), ticket).ptr;
  text.erase(0, std::min(text.size(), static_cast<std::size_t>(end - text.data()) + 1));
  return ticket;
}

// A copy of the Broker, which has one thread: nothing is half done in it.
[[noreturn]] void run_errands(const Errands::Kind& kind, int socket) {
  sys::close_all_but({&socket, 1});
  (void)::prctl(PR_SET_NAME, kind.name);
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) {
    pollfd order{socket, POLLIN, 0};
    if (::poll(&order, 1, -1) < 0 && errno != EINTR) ::_exit(1);
    wire::Packet packet;
    const wire::Received got = wire::receive(socket, packet);
    if (got == wire::Received::nothing) continue;
    if (got != wire::Received::packet) ::_exit(0);
    const Errands::Ticket ticket = take_ticket(packet.text);
    if (!wire::send(socket, fmt::format("{} {}", ticket, kind.work(packet)))) ::_exit(0);
  }
}

}  // namespace

Errands::~Errands() { stop(); }

void Errands::start() {
  auto ends = wire::pair(SOCK_SEQPACKET);
  if (!ends) return;
  pid_ = ::fork();
  if (pid_ == 0) run_errands(kind_, ends->second.get());
  if (pid_ < 0) return;
  socket_ = std::move(ends->first);
  loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t) { on_answer(); });
}

void Errands::stop() {
  loop_.cancel(patience_);
  unanswered_ = 0;
  if (!socket_) return;
  loop_.forget(socket_.get());
  socket_.reset();
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  for (auto& [ticket, done] : std::exchange(waiting_, {})) done(std::nullopt);
}

void Errands::expect() {
  loop_.cancel(patience_);
  if (unanswered_ > 0 && kind_.patience.count() > 0) patience_ = loop_.after(kind_.patience, [this] { stop(); });
}

Errands::Ticket Errands::ask(const std::string& order, const std::vector<int>& fds, Done done) {
  if (!socket_) start();
  waiting_.emplace(++last_, std::move(done));
  const Ticket ticket = last_;
  if (socket_ && wire::send(socket_.get(), fmt::format("{} {}", ticket, order), fds)) {
    if (unanswered_++ == 0) expect();
    return ticket;
  }
  // Later: whoever asks does not expect the answer before the ticket.
  loop_.after({}, [this, ticket] {
    if (auto node = waiting_.extract(ticket)) node.mapped()(std::nullopt);
  });
  return ticket;
}

void Errands::forget(Ticket& ticket) { waiting_.erase(std::exchange(ticket, 0)); }

void Errands::on_answer() {
  wire::Packet packet;
  const wire::Received got = wire::receive(socket_.get(), packet);
  if (got == wire::Received::nothing) return;
  const Ticket ticket = got == wire::Received::packet ? take_ticket(packet.text) : 0;
  if (ticket == 0) return stop();
  --unanswered_;
  expect();
  if (auto node = waiting_.extract(ticket)) node.mapped()(std::move(packet.text));
}

}  // namespace pctx
