#include "net/box_network.h"

#include <fcntl.h>
#include <linux/if_packet.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "net/address_class.h"
#include "net/packets.h"

namespace pctx::net {
namespace {

using namespace std::chrono_literals;
constexpr int kAcceptBatch = 4, kPacketBatch = 64, kLastLooks = 16;
constexpr std::uint16_t kDns = 53;
constexpr auto kPause = 100ms;

}  // namespace

BoxNetwork::BoxNetwork(const Surroundings& around, Parts parts)
    : box_{.loop = around.loop,
           .resolver = around.resolver,
           .turns = around.turns,
           .descriptors = around.descriptors,
           .policy = parts.policy,
           .book = {},
           .up = {parts.policy.rate, sys::Loop::Clock::now()},
           .down = {parts.policy.rate, sys::Loop::Clock::now()},
           .turn = {},
           .files = {}},
      end_count_(parts.end_count),
      ends_(std::move(parts.ends)),
      names_(parts.known),
      dns_(box_, names_, parts.known, std::move(ends_.dns_udp), std::move(ends_.dns_tcp), std::move(parts.announce)) {
  for (const auto& [port, listener] : ends_.listeners) {
    const int fd = listener.get();
    (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    box_.loop.watch(fd, EPOLLIN, [this, port = port, fd](std::uint32_t) { on_connection(port, fd); });
  }
  if (ends_.packet) box_.loop.watch(ends_.packet.get(), EPOLLIN, [this](std::uint32_t) { on_packet(); });
}

BoxNetwork::~BoxNetwork() {
  for (auto& [fd, timer] : pauses_) box_.loop.cancel(timer);
  for (const auto& [port, listener] : ends_.listeners) box_.loop.forget(listener.get());
  box_.loop.forget(ends_.packet.get());
  box_.descriptors.give_back_ends(end_count_);
}

void BoxNetwork::close() {
  // What the guest tried last may still lie in the socket: a short run is over before we have looked once.
  for (int i = 0; ends_.packet && i < kLastLooks; ++i) on_packet();
  count_unseen();
  for (const auto& [number, connection] : connections_) connection->cut("the box ended", true);
}

// What came faster than it was read is lost, but the kernel has counted it.
void BoxNetwork::count_unseen() {
  tpacket_stats seen{};
  socklen_t size = sizeof seen;
  if (ends_.packet && ::getsockopt(ends_.packet.get(), SOL_PACKET, PACKET_STATISTICS, &seen, &size) == 0)
    box_.book.leave_out(seen.tp_drops);
}

bool BoxNetwork::yield() {
  const auto last =
      std::find_if(connections_.rbegin(), connections_.rend(), [](const auto& each) { return !each.second->over(); });
  if (last == connections_.rend()) return false;
  last->second->cut("the relay needed its descriptors for another box", true);
  return true;
}

// Out of descriptors or memory: the connection stays in the queue, and the loop must not spin over it.
void BoxNetwork::pause(int fd, std::function<void()> again) {
  box_.loop.forget(fd);
  pauses_[fd] = box_.loop.after(kPause, [this, fd, again = std::move(again)] {
    pauses_.erase(fd);
    box_.loop.watch(fd, EPOLLIN, [again](std::uint32_t) { again(); });
  });
}

void BoxNetwork::on_connection(std::uint16_t port, int listener) {
  for (int i = 0; i < kAcceptBatch; ++i) {
    Fd socket{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (socket) {
      admit(std::move(socket), port);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
      pause(listener, [this, port, listener] { on_connection(port, listener); });
    return;
  }
}

void BoxNetwork::refuse(Fd socket, ConnectionRecord record) {
  const linger now{1, 0};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  box_.book.write(std::move(record));
}

void BoxNetwork::admit(Fd socket, std::uint16_t port) {
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0) return;
  const auto meant = from_sockaddr(local);
  if (!meant) return;
  const IpAddress address = meant->first;
  ConnectionRecord record{.address = address.text(), .port = port, .transport = "tcp"};
  const std::string* name = NameTable::is_synthetic(address) ? names_.find(address) : nullptr;
  const NetRule* rule = nullptr;
  if (name != nullptr) {
    record.name = *name;
    record.address.clear();
    rule = find_rule(box_.policy, *name, port);
    record.reason = "no entry of the list names this host with this port";
  } else if (NameTable::is_synthetic(address)) {
    record.reason = "this address stands for no name";
  } else {
    rule = find_rule(box_.policy, address, port);
    record.reason = "no entry of the list names this address with this port";
  }
  if (rule == nullptr) return refuse(std::move(socket), std::move(record));
  if (const std::uint64_t most = box_.policy.connections.value_or(kMaxNetConnections); connections_.size() >= most) {
    record.reason = fmt::format("more than {} connections at once", most);
    return refuse(std::move(socket), std::move(record));
  }
  const std::uint64_t number = next_++;
  auto connection = std::make_unique<Connection>(box_, std::move(socket), name != nullptr ? *name : std::string{},
                                                 address, port, rule->kind == NetRule::Kind::address,
                                                 [this, number] { connections_.erase(number); });
  Connection& started = *connection;
  connections_.emplace(number, std::move(connection));
  started.start();
}

// Whether the box takes an address for its own, so that connections to it arrive at the listeners.
bool BoxNetwork::is_local(const IpAddress& address) const {
  // Linux takes an IPv6 route over a loopback device for "unreachable", and a guest would learn it after a second:
  // there every address is local.
  if (address.v6) return true;
  return std::any_of(box_.policy.rules.begin(), box_.policy.rules.end(), [&](const NetRule& rule) {
    return rule.kind == NetRule::Kind::any || (rule.kind == NetRule::Kind::address && rule.address.contains(address));
  });
}

bool BoxNetwork::listens(std::uint16_t port) const {
  return std::any_of(ends_.listeners.begin(), ends_.listeners.end(),
                     [&](const auto& each) { return each.first == port; });
}

void BoxNetwork::on_packet() {
  std::array<char, 256> packet;
  for (int i = 0; i < kPacketBatch; ++i) {
    sockaddr_ll from{};
    socklen_t size = sizeof from;
    const ssize_t got = ::recvfrom(ends_.packet.get(), packet.data(), packet.size(), MSG_DONTWAIT,
                                   reinterpret_cast<sockaddr*>(&from), &size);
    if (got < 0) return;
    // Everything on a loopback device is seen twice, on its way out and in.
    if (from.sll_pkttype == PACKET_OUTGOING) continue;
    const auto attempt = read_attempt({packet.data(), static_cast<std::size_t>(got)});
    if (!attempt || closed_class(attempt->to) == "loopback") continue;
    const bool synthetic = NameTable::is_synthetic(attempt->to);
    const bool here = synthetic || is_local(attempt->to);
    if (here && (attempt->to_port == kDns || (attempt->tcp && listens(attempt->to_port)))) continue;  // was answered
    const std::string* name = synthetic ? names_.find(attempt->to) : nullptr;
    if (synthetic && name == nullptr) continue;  // the box's own address and its name server's
    box_.book.write({.name = name != nullptr ? *name : std::string{},
                     .address = name != nullptr ? std::string{} : attempt->to.text(),
                     .port = attempt->to_port,
                     .transport = attempt->tcp ? "tcp" : "udp",
                     .reason = name != nullptr ? "no entry of the list names this host with this port"
                                               : "no entry of the list names this address"});
    const Fd& raw = attempt->to.v6 ? ends_.raw6 : ends_.raw4;
    if (!raw || here) continue;  // what is local to the box, its kernel answers
    const std::string answer = refusal(*attempt);
    // The port of a raw socket's destination is a protocol there, and must be none.
    const SocketAddress to = to_sockaddr(attempt->from, 0);
    (void)::sendto(raw.get(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL, to.get(), to.size);
  }
}

}  // namespace pctx::net
