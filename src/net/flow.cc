// The second half of Connection: bytes. Unchecked ones move through a pipe inside the kernel (splice), checked ones
// through the gate.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/units.h"
#include "net/connection.h"

namespace pctx::net {
namespace {

constexpr std::size_t kPiece = 1_MiB;  // at once, where no rate says less
constexpr std::size_t kCheckedPiece = 16_KiB;

std::array<char, kCheckedPiece> buffer;  // one thread, and nothing stays in it

}  // namespace

// Whether the gate has something on its way whose answer it must see first.
bool Connection::waiting() const {
  const auto ask = [](const auto& gate) {
    if constexpr (std::is_same_v<std::decay_t<decltype(gate)>, std::monostate>)
      return false;
    else
      return gate.waiting();
  };
  return std::visit(ask, gate_);
}

// Whether bytes of this direction pass through the gate.
bool Connection::checking(bool up) const {
  if (!up) return waiting();
  if (const auto* tls = std::get_if<TlsGate>(&gate_)) return !tls->done();
  if (const auto* http = std::get_if<HttpGate>(&gate_)) return !http->done();
  return false;
}

void Connection::pump() {
  if (over_) return;
  Move up = move(guest_, server_, up_, true);
  if (over_) return;
  const Move down = server_.socket ? move(server_, guest_, down_, false) : Move::waiting;
  if (over_) return;
  // What the server said may have opened the gate.
  if (up == Move::waiting && gate_.index() != 0) up = move(guest_, server_, up_, true);
  if (over_) return;
  if (up_.finished && down_.finished) return end();
  if ((up == Move::again || down == Move::again) && turn_ == 0)
    turn_ = box_.turns.wait(box_.turn, [this] { turn_ = 0, pump(); });
}

Connection::Move Connection::move(Side& from, Side& to, Flow& flow, bool up) {
  while (!flow.finished) {
    if (flow.in_pipe > 0 || flow.pending_at < flow.pending.size()) {
      if (!to.socket || !to.writable) return Move::waiting;
      if (const Move wrote = write_some(to, flow, up); wrote != Move::again) return wrote;
      continue;
    }
    if (flow.ended) {
      if (!to.socket) return Move::waiting;
      (void)::shutdown(to.socket.get(), SHUT_WR);
      flow.finished = true;
      break;
    }
    if (!from.readable) return Move::waiting;
    // Without a server there is nowhere to go, but a greeting can be looked at.
    if (!to.socket && !checking(up)) return Move::waiting;
    const std::uint64_t turn = box_.turns.left(box_.turn);
    if (turn == 0) return Move::again;  // others first
    TokenBucket& bucket = up ? box_.up : box_.down;
    std::uint64_t most = bucket.available(sys::Loop::Clock::now());
    if (most == 0) {
      wake_after(bucket.wait());
      return Move::waiting;
    }
    if (up) most = std::min(most, box_.may_take());
    if (up && most == 0) return over_budget(from, flow);
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>({most, turn, kPiece}));
    const Move got = checking(up) ? read_checked(from, flow, up, size) : read_some(from, flow, up, size);
    if (got != Move::again) return got;
  }
  return Move::waiting;
}

// Not a byte more may leave. Does the guest have one?
Connection::Move Connection::over_budget(Side& from, Flow& flow) {
  char byte;
  const ssize_t got = ::recv(from.socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got > 0) {
    cut("the byte budget is used up", true);
    return Move::failed;
  }
  if (got == 0) {
    flow.ended = true;
    return move(guest_, server_, up_, true);
  }
  from.readable = false;
  return Move::waiting;
}

// What a failed or fruitless read means. 0 is the end.
Connection::Move Connection::take_count(ssize_t got, Side& from, Flow& flow, bool up) {
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    from.readable = errno == EINTR;
    return errno == EINTR ? Move::again : Move::waiting;
  }
  if (got < 0) {
    cut(up ? "" : "the server reset the connection", true);
    return Move::failed;
  }
  flow.ended = got == 0;
  box_.turns.spend(box_.turn, static_cast<std::uint64_t>(got));
  (up ? box_.up : box_.down).take(static_cast<std::uint64_t>(got));
  if (up) box_.taken += static_cast<std::uint64_t>(got);
  return Move::again;
}

// Most connections say little: two pipes, four descriptors, would cost them more than a copy.
Connection::Move Connection::read_little(Side& from, Flow& flow, bool up, std::size_t most) {
  const ssize_t got = ::recv(from.socket.get(), buffer.data(), std::min(most, buffer.size()), MSG_DONTWAIT);
  if (got > 0) flow.pending.append(buffer.data(), static_cast<std::size_t>(got));
  flow.bulk = got == static_cast<ssize_t>(buffer.size());
  return take_count(got, from, flow, up);
}

Connection::Move Connection::read_some(Side& from, Flow& flow, bool up, std::size_t most) {
  if (!flow.bulk || flow.pipeless) return read_little(from, flow, up, most);
  if (!flow.pipe_in) {
    int ends[2];
    if (!hold(2) || ::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
      flow.pipeless = true;
      return read_little(from, flow, up, most);
    }
    flow.pipe_out = Fd{ends[0]};
    flow.pipe_in = Fd{ends[1]};
    (void)::fcntl(flow.pipe_in.get(), F_SETPIPE_SZ, kPiece);
  }
  const ssize_t got =
      ::splice(from.socket.get(), nullptr, flow.pipe_in.get(), nullptr, most, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
  if (got > 0) flow.in_pipe += static_cast<std::size_t>(got);
  return take_count(got, from, flow, up);
}

Connection::Move Connection::read_checked(Side& from, Flow& flow, bool up, std::size_t most) {
  if (up && waiting()) {  // until the server has spoken
    if (from.gone) {
      cut("", true);
      return Move::failed;
    }
    flow.ended = down_.finished;  // it never will
    return flow.ended ? Move::again : Move::waiting;
  }
  const ssize_t got = ::recv(from.socket.get(), buffer.data(), std::min(most, buffer.size()), MSG_DONTWAIT);
  if (const Move taken = take_count(got, from, flow, up); got < 0) return taken;
  const std::string_view bytes{buffer.data(), static_cast<std::size_t>(got)};
  bool good = true, passed = false;
  std::string_view reason;
  if (!up) flow.pending += bytes;
  const auto show = [&](auto& gate) {
    if constexpr (!std::is_same_v<std::decay_t<decltype(gate)>, std::monostate>) {
      good = up ? gate.feed(bytes, flow.pending) : gate.answer(bytes, up_.pending);
      passed = gate.passed();
      reason = gate.reason();
    }
  };
  std::visit(show, gate_);
  if (!good) {
    cut(std::string{reason}, false);
    return Move::failed;
  }
  if (passed) box_.loop.cancel(greeting_);
  // A guest that ends in the middle of its greeting said nothing that may go on.
  if (flow.ended && up && !passed) {
    cut("", true);
    return Move::failed;
  }
  return Move::again;
}

Connection::Move Connection::write_some(Side& to, Flow& flow, bool up) {
  ssize_t put = 0;
  if (flow.pending_at < flow.pending.size()) {
    put = ::send(to.socket.get(), flow.pending.data() + flow.pending_at, flow.pending.size() - flow.pending_at,
                 MSG_NOSIGNAL | MSG_DONTWAIT);
  } else {
    put = ::splice(flow.pipe_out.get(), nullptr, to.socket.get(), nullptr, flow.in_pipe,
                   SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
  }
  if (put < 0 && (errno == EAGAIN || errno == EINTR)) {
    to.writable = errno == EINTR;
    return errno == EINTR ? Move::again : Move::waiting;
  }
  if (put <= 0) {
    cut(up ? "the server closed the connection" : "", true);
    return Move::failed;
  }
  const auto bytes = static_cast<std::size_t>(put);
  if (flow.pending_at < flow.pending.size()) {
    flow.pending_at += bytes;
    if (flow.pending_at == flow.pending.size()) {
      flow.pending.clear();
      flow.pending_at = 0;
    }
  } else {
    flow.in_pipe -= bytes;
  }
  (up ? record_.sent : record_.received) += bytes;
  (up ? box_.sent : box_.received) += bytes;
  return Move::again;
}

}  // namespace pctx::net
