// Where the callers are. To them it is a Broker; what it hands out are descriptors of its own making.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "sys/files.h"
#include "wire/carrier.h"

namespace pctx::wire {
namespace {

constexpr std::size_t kMostNearLines = 512;
constexpr std::size_t kMostHeld = 64;  // packets for one caller
constexpr auto kPing = std::chrono::seconds{10};
// It tells a caller that descriptors end here: large buffers go through the socket.
constexpr std::string_view kLeased = R"({"leased": {"carried": true}})";
constexpr std::string_view kReport = R"({"ended": "in the file"})";
constexpr std::string_view kDone = R"({"done")";

class Near : public Carrier {
 public:
  Near(sys::Loop& loop, Fd in, Fd out, Fd listener, std::chrono::seconds idle)
      : Carrier(loop, Side::near, std::move(in), std::move(out)), listener_(std::move(listener)), idle_(idle) {}

 private:
  Result<void> start() override;
  Result<void> take(Line* line, const Frame& frame) override;
  void converse(Line& line) override;
  void accept();
  void tick();
  bool hold(Line& line, std::string text, std::vector<Fd> fds);
  bool collect(Line& line, std::string_view piece);
  bool make_lease(Line& line);

  Fd listener_;
  const std::chrono::seconds idle_;
  sys::Loop::Clock::time_point used_ = sys::Loop::Clock::now();
};

Result<void> Near::start() {
  loop_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) {
    accept();
    settle();
  });
  tick();
  return {};
}

void Near::tick() {
  const auto now = sys::Loop::Clock::now();
  if (!lines_.empty()) used_ = now;
  if (now - used_ > idle_) return loop_.stop();
  send({Kind::ping});
  settle();
  (void)loop_.after(kPing, [this] { tick(); });
}

void Near::accept() {
  Fd socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (!socket) return;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid()) return;
  if (lines_.size() >= kMostNearLines || highest_ == UINT32_MAX) return;
  const Line& line = add_line(highest_ + 1, std::move(socket));
  send({Kind::open, 0, line.id});
}

Result<void> Near::take(Line* line, const Frame& frame) {
  const auto refuse = [](const char* what) -> Result<void> { return unavailable(what, "try again"); };
  bool kept = true;
  switch (frame.kind) {
    case Kind::piece:
      kept = collect(*line, frame.body);
      break;
    case Kind::packet:
      if (!line->report) {
        kept = hold(*line, std::string{frame.body}, {});
        break;
      }
      kept = collect(*line, frame.body);
      if (kept) {
        std::vector<Fd> file;
        file.push_back(std::move(line->report));
        line->report_size = 0;
        kept = hold(*line, std::string{kReport}, std::move(file));
      }
      break;
    case Kind::leased:
      if (frame.lease != line->lease + 1) return refuse("the far end sent a lease out of turn");
      line->lease = frame.lease;
      kept = make_lease(*line);
      break;
    case Kind::close:
      line->closing = true;
      break;
    default:
      return refuse("the far end sent what only a near end sends");
  }
  if (kept)
    pump(*line);
  else
    drop_line(*line);
  return {};
}

bool Near::hold(Line& line, std::string text, std::vector<Fd> fds) {
  if (line.closing || line.held.size() >= kMostHeld) return false;
  line.held.push_back({std::move(text), std::move(fds)});
  return true;
}

bool Near::collect(Line& line, std::string_view piece) {
  if (!line.report) line.report = Fd{::memfd_create("report", MFD_CLOEXEC)};
  line.report_size += piece.size();
  return line.report && line.report_size <= kLongestReport && sys::write_all(line.report.get(), piece);
}

bool Near::make_lease(Line& line) {
  drop_lease(line);
  auto socket = pair(SOCK_STREAM);
  int out[2], err[2];
  if (!socket || ::pipe2(out, O_CLOEXEC) != 0) return false;
  std::vector<Fd> theirs;
  theirs.emplace_back(::fcntl(socket->second.get(), F_DUPFD_CLOEXEC, 0));
  theirs.emplace_back(out[0]);
  Fd ours[] = {std::move(socket->first), Fd{out[1]}, Fd{}};
  if (::pipe2(err, O_CLOEXEC) != 0) return false;
  theirs.emplace_back(err[0]);
  ours[2].reset(err[1]);
  line.theirs = std::move(socket->second);
  for (std::size_t i = 0; i < kStreams; ++i) {
    Channel& channel = line.streams[i];
    channel.fd = std::move(ours[i]);
    (void)::fcntl(channel.fd.get(), F_SETFL, ::fcntl(channel.fd.get(), F_GETFL) | O_NONBLOCK);
    channel.reads = i == 0;
    channel.writes = true;
  }
  return hold(line, std::string{kLeased}, std::move(theirs));
}

void Near::converse(Line& line) {
  // What a Worker said comes before what is said about it.
  while (!line.held.empty() && written(line)) {
    const Line::Packet packet = std::move(line.held.front());
    line.held.pop_front();
    std::vector<int> fds;
    for (const Fd& fd : packet.fds) fds.push_back(fd.get());
    if (!wire::send(line.control.get(), packet.text, fds)) return drop_line(line);
  }
  if (line.closing && line.held.empty() && written(line)) return drop_line(line);
  while (line.ready && !full()) {
    wire::Packet packet;
    const Received received = receive(line.control.get(), packet);
    if (received == Received::nothing) {
      line.ready = false;
    } else if (received == Received::end || !packet.fds.empty()) {
      return drop_line(line);
    } else if (!line.closing) {
      if (packet.text.starts_with(kDone) && line.lease != 0) {
        drop_lease(line);
        send({Kind::drop, 0, line.id, line.lease});
      }
      send_packet(line, packet.text);
    }
  }
}

}  // namespace

Result<void> carry_near(Fd in, Fd out, Fd listener, std::chrono::seconds idle) {
  sys::Loop loop = PCTX_TRY(sys::Loop::make());
  return Near{loop, std::move(in), std::move(out), std::move(listener), idle}.run();
}

}  // namespace pctx::wire
