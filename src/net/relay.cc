#include "net/relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include "net/control.h"
#include "net/door.h"
#include "net/record_book.h"
#include "sys/files.h"
#include "wire/packet.h"

namespace pctx {
namespace {

constexpr int kListensWithin = 2000;  // for a relay that does not read; it never waits for anything itself
constexpr int kMostPackets = 64;

Result<void> send_patiently(int socket, std::string_view text, const std::vector<int>& fds) {
  for (;;) {
    if (wire::send(socket, text, fds)) return {};
    if (errno != EAGAIN && errno != EINTR) return os_error("the relay does not listen");
    pollfd ready{socket, POLLOUT, 0};
    if (const int got = ::poll(&ready, 1, kListensWithin); got == 0)
      return os_error("the relay does not listen", ETIMEDOUT);
  }
}

}  // namespace

struct Relay::State {
  struct Used {
    std::uint64_t sent = 0, received = 0;
  };
  pid_t pid = -1;
  Fd control;
  bool dead = false;
  std::optional<Error> failure;
  net::RecordReader reader;
  std::map<std::uint32_t, Used> boxes;  // added, and not yet told about

  ~State() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
};

Relay::Relay(std::unique_ptr<State> state) : state_(std::move(state)) {}
Relay::Relay(Relay&& other) noexcept = default;
Relay& Relay::operator=(Relay&& other) noexcept = default;
Relay::~Relay() = default;

Result<Relay> Relay::start() {
  auto [ours, theirs] = PCTX_TRY(wire::pair(SOCK_SEQPACKET | SOCK_NONBLOCK));
  auto state = std::make_unique<State>();
  if (net::is_without_door())
    return unavailable("boxes on another machine have no way to the relay of this one: they have no network by name",
                       "call without allow_network, or with a backend of this machine");
  if (net::door() >= 0) {
    PCTX_TRY(net::start_relay_outside(std::move(theirs)));
    state->control = std::move(ours);
    return Relay{std::move(state)};
  }
  state->pid = ::fork();
  if (state->pid < 0) return os_error("cannot start the relay");
  if (state->pid == 0) {
    state->pid = -1;
    net::run_relay(std::move(theirs));
  }
  state->control = std::move(ours);
  return Relay{std::move(state)};
}

int Relay::fd() const { return state_->control.get(); }
bool Relay::alive() const { return !state_->dead; }
const std::optional<Error>& Relay::failure() const { return state_->failure; }
pid_t Relay::pid() const { return state_->pid; }

Result<void> Relay::add(std::uint32_t id, const NetworkPolicy& policy, const NetworkEnds& ends,
                        const std::vector<std::string>& known) {
  if (state_->failure) return *state_->failure;
  for (const std::string& packet : net::write_known(id, known))
    PCTX_TRY(send_patiently(state_->control.get(), packet, {}));
  for (const net::AddPacket& packet : net::write_add(id, policy, ends))
    PCTX_TRY(send_patiently(state_->control.get(), packet.text, packet.fds));
  state_->boxes.try_emplace(id);
  return {};
}

void Relay::remove(std::uint32_t id) {
  // One that died has told so, or will: the record comes all the same, and says that it is not complete.
  (void)send_patiently(state_->control.get(), net::write_remove(id), {});
}

void Relay::reload_names() {
  if (net::door() >= 0) return;  // the files here are not those of the relay
  auto resolv = sys::open_at(AT_FDCWD, "/etc/resolv.conf", O_RDONLY),
       hosts = sys::open_at(AT_FDCWD, "/etc/hosts", O_RDONLY);
  if (!resolv) resolv = sys::open_at(AT_FDCWD, "/dev/null", O_RDONLY);
  if (!hosts) hosts = sys::open_at(AT_FDCWD, "/dev/null", O_RDONLY);
  if (resolv && hosts) (void)send_patiently(state_->control.get(), net::write_names(), {resolv->get(), hosts->get()});
}

void Relay::serve(const Listener& listener) {
  std::vector<std::pair<std::uint32_t, NetworkRecord>> told;
  std::vector<std::uint32_t> refused;
  for (int i = 0; i < kMostPackets && !state_->dead; ++i) {
    wire::Packet packet;
    const wire::Received received = wire::receive(state_->control.get(), packet);
    if (received == wire::Received::nothing) break;
    if (received != wire::Received::packet) {
      state_->dead = true;
      break;
    }
    const net::Notice notice = net::read_notice(packet.text);
    if (notice.kind == net::Notice::Kind::failed) state_->failure = notice.error;
    const auto box = state_->boxes.find(notice.id);
    if (box == state_->boxes.end()) continue;
    if (notice.kind == net::Notice::Kind::used) box->second = {notice.sent, notice.received};
    if (notice.kind == net::Notice::Kind::named) listener.named(notice.id, notice.number, notice.name);
    if (notice.kind == net::Notice::Kind::refused) refused.push_back(notice.id);
    std::uint32_t id = 0;
    if (notice.kind != net::Notice::Kind::record) continue;
    if (const auto whole = state_->reader.read(packet.text, id); !whole || !*whole) continue;
    told.emplace_back(id, state_->reader.take(id));
    state_->boxes.erase(box);
  }
  if (state_->dead)
    for (const auto& [id, used] : std::exchange(state_->boxes, {})) {
      NetworkRecord record = state_->reader.take(id);
      record.complete = false;
      record.sent = used.sent;
      record.received = used.received;
      told.emplace_back(id, std::move(record));
    }
  // Last: what is called may start another relay in this one's place.
  for (const std::uint32_t id : refused) listener.refused(id);
  for (auto& [id, record] : told) listener.record(id, std::move(record));
}

}  // namespace pctx
