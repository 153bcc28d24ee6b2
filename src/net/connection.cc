#include "net/connection.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "net/address_class.h"

namespace pctx::net {
namespace {

using namespace std::chrono_literals;
constexpr auto kConnectTime = 30s, kGreetingTime = 10s;
constexpr auto kStagger = 250ms;  // RFC 8305: before the next address is tried beside the first
constexpr std::size_t kMostTargets = 8;

// The kernel sends from an address of this host to an address of this host; no packet leaves for this question.
bool is_own_address(const IpAddress& address, std::uint16_t port) {
  const Fd probe{::socket(address.v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  const SocketAddress to = to_sockaddr(address, port);
  sockaddr_storage mine{};
  socklen_t size = sizeof mine;
  if (!probe) return true;  // what cannot be looked at stays closed
  if (::connect(probe.get(), to.get(), to.size) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&mine), &size) != 0)
    return false;
  const auto from = from_sockaddr(mine);
  return from && from->first == address;
}

// Why this address may not be connected to; empty if it may.
std::string closed_reason(const NetworkPolicy& policy, const IpAddress& address, std::uint16_t port) {
  if (is_opened(policy, address)) return {};
  if (const std::string_view kind = closed_class(address); !kind.empty()) return fmt::format("a {} address", kind);
  return is_own_address(address, port) ? "an address of this host" : std::string{};
}

std::string words(int code) {
  const char* text = strerrordesc_np(code);
  return text != nullptr ? text : "unknown error";
}

void reset_on_close(int socket) {
  const linger now{1, 0};
  (void)::setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

}  // namespace

bool is_chosen(const NetworkPolicy& policy, std::string_view name) {
  return std::none_of(policy.rules.begin(), policy.rules.end(),
                      [&](const NetRule& rule) { return rule.kind == NetRule::Kind::name && rule.name == name; });
}

bool BoxShare::pay_for_question(const std::string& name) {
  if (!policy.bytes || !is_chosen(policy, name) || resolver.knows(name)) return true;
  if (may_take() < name.size()) return false;
  taken += name.size();
  return true;
}

Connection::Connection(BoxShare& box, Fd guest, std::string name, const IpAddress& address, std::uint16_t port,
                       bool named, Ended ended)
    : box_(box), named_(named), meant_(address), ended_(std::move(ended)) {
  guest_.socket = std::move(guest);
  record_ = {.name = name, .port = port, .transport = "tcp", .allowed = true};
  if (name.empty()) {
    record_.address = address.text();
    record_.check = "address";
  } else if (port == 443) {
    record_.check = "sni";
    gate_.emplace<TlsGate>(std::move(name));
  } else if (port == 80) {
    record_.check = "host";
    gate_.emplace<HttpGate>(std::move(name), port);
  } else {
    record_.check = "name";
  }
}

Connection::~Connection() {
  for (sys::Loop::TimerId* timer : {&deadline_, &greeting_, &stagger_, &wake_, &gone_}) box_.loop.cancel(*timer);
  box_.turns.cancel(turn_);
  box_.resolver.cancel(ticket_);
  for (const Trial& trial : trials_) box_.loop.forget(trial.socket.get());
  box_.loop.forget(guest_.socket.get());
  box_.loop.forget(server_.socket.get());
  let_go(held_);
}

bool Connection::hold(std::size_t descriptors) {
  if (!box_.descriptors.try_take(box_.files, descriptors)) return false;
  held_ += descriptors;
  return true;
}

void Connection::let_go(std::size_t descriptors) {
  box_.descriptors.give_back(box_.files, descriptors);
  held_ -= descriptors;
}

void Connection::start() {
  // The guest's, and one to the server.
  if (!hold(2)) return cut("the relay has no more descriptors for this box", false);
  if (box_.may_take() == 0 || (!record_.name.empty() && !box_.pay_for_question(record_.name)))
    return cut("the byte budget is used up", false);
  const int on = 1;
  (void)::setsockopt(guest_.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  deadline_ = box_.loop.after(kConnectTime, [this] {
    deadline_ = 0;
    cut("the server did not answer in time", true);
  });
  if (gate_.index() != 0)
    greeting_ = box_.loop.after(kGreetingTime, [this] {
      greeting_ = 0;
      cut(record_.check == "sni" ? "no TLS greeting came in time" : "no request came in time", false);
    });
  // Before the name is known and the server is there: the guest's greeting can be checked meanwhile.
  watch(guest_);
  if (record_.name.empty()) return on_resolved({Resolved::Status::found, {meant_}});
  const Resolver::Ticket ticket = box_.resolver.resolve(record_.name, [this](const Resolved& resolved) {
    ticket_ = 0;
    on_resolved(resolved);
  });
  if (!over_) ticket_ = ticket;
}

void Connection::on_resolved(const Resolved& resolved) {
  if (resolved.status != Resolved::Status::found)
    return cut(resolved.status == Resolved::Status::no_name ? "the name does not exist" : "the name cannot be resolved",
               resolved.status == Resolved::Status::failed);
  std::string refused;
  for (const IpAddress& address : resolved.addresses) {
    std::string reason =
        named_ && record_.name.empty() ? std::string{} : closed_reason(box_.policy, address, record_.port);
    if (reason.empty() && targets_.size() < kMostTargets) targets_.push_back(address);
    if (!reason.empty() && refused.empty()) {
      refused = std::move(reason);
      record_.address = address.text();
    }
  }
  if (targets_.empty())
    return cut(
        record_.name.empty() ? fmt::format("this is {}", refused) : fmt::format("the name resolves to {}", refused),
        false);
  record_.address = targets_.front().text();
  // The family that the guest chose first: where one of the two leads nowhere, it will have found out.
  std::stable_partition(targets_.begin(), targets_.end(),
                        [this](const IpAddress& each) { return each.v6 == meant_.v6; });
  try_next();
}

void Connection::try_next() {
  box_.loop.cancel(stagger_);
  while (next_target_ < targets_.size()) {
    // Beside another one only as long as there are descriptors for both; else when that one has failed.
    if (trials_.size() > extra_) {
      if (!hold(1)) return;
      ++extra_;
    }
    const IpAddress address = targets_[next_target_++];
    Fd socket{::socket(address.v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (!socket) {
      last_error_ = errno;
      continue;
    }
    if (box_.policy.rate) {
      // What waits in the kernel's buffers would be far ahead of the rate.
      const int size = static_cast<int>(std::clamp<std::uint64_t>(*box_.policy.rate / 16, 16384, 1 << 19));
      for (const int fd : {socket.get(), guest_.socket.get()})
        (void)::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    }
    const SocketAddress to = to_sockaddr(address, record_.port);
    const int code = ::connect(socket.get(), to.get(), to.size) == 0 ? 0 : errno;
    if (code == 0) return connected(std::move(socket), address);
    if (code != EINPROGRESS) {
      last_error_ = code;
      continue;
    }
    const int fd = socket.get();
    trials_.push_back({std::move(socket), address});
    box_.loop.watch(fd, EPOLLOUT, [this, fd](std::uint32_t) { on_tried(fd); });
    if (next_target_ < targets_.size()) stagger_ = box_.loop.after(kStagger, [this] { stagger_ = 0, try_next(); });
    return;
  }
  if (trials_.empty()) cut(fmt::format("the server cannot be reached: {}", words(last_error_)), true);
}

void Connection::on_tried(int fd) {
  const auto trial =
      std::find_if(trials_.begin(), trials_.end(), [&](const Trial& each) { return each.socket.get() == fd; });
  int code = 0;
  socklen_t size = sizeof code;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) != 0) code = errno;
  box_.loop.forget(fd);
  Trial tried = std::move(*trial);
  trials_.erase(trial);
  if (code == 0) return connected(std::move(tried.socket), tried.address);
  last_error_ = code;
  record_.address = tried.address.text();
  try_next();
}

void Connection::connected(Fd server, const IpAddress& address) {
  for (const Trial& trial : trials_) box_.loop.forget(trial.socket.get());
  trials_.clear();
  let_go(std::exchange(extra_, 0));
  box_.loop.cancel(stagger_);
  box_.loop.cancel(deadline_);
  record_.address = address.text();
  server_.socket = std::move(server);
  const int on = 1;
  (void)::setsockopt(server_.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  server_.writable = true;
  watch(server_);
  pump();
}

void Connection::watch(Side& side) {
  box_.loop.watch(side.socket.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, [this, &side](std::uint32_t events) {
    side.readable = side.readable || (events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0;
    side.writable = side.writable || (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0;
    side.gone = side.gone || (events & (EPOLLERR | EPOLLHUP)) != 0;
    pump();
  });
}

void Connection::wake_after(sys::Loop::Clock::duration delay) {
  if (wake_ != 0) return;
  wake_ = box_.loop.after(delay, [this] { wake_ = 0, pump(); });
}

void Connection::cut(std::string reason, bool allowed) {
  if (over_) return;
  record_.reason = std::move(reason);
  record_.allowed = allowed;
  for (const Side* side : {&guest_, &server_})
    if (side->socket) reset_on_close(side->socket.get());
  end();
}

void Connection::end() {
  if (over_) return;
  over_ = true;
  for (sys::Loop::TimerId* timer : {&deadline_, &greeting_, &stagger_, &wake_}) box_.loop.cancel(*timer);
  box_.turns.cancel(turn_);
  box_.resolver.cancel(ticket_);
  for (const Trial& trial : trials_) box_.loop.forget(trial.socket.get());
  trials_.clear();
  for (Side* side : {&guest_, &server_}) {
    box_.loop.forget(side->socket.get());
    side->socket.reset();
  }
  for (Flow* flow : {&up_, &down_}) {
    flow->pipe_in.reset();
    flow->pipe_out.reset();
  }
  let_go(held_);
  box_.book.write(std::move(record_));
  // Not from here: somebody above on the stack may still be using us.
  gone_ = box_.loop.after({}, [this] {
    gone_ = 0;
    const Ended ended = std::move(ended_);
    ended();
  });
}

}  // namespace pctx::net
