// Where the Broker is. Guests are behind the descriptors of a lease: their bytes are carried, and never looked at.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "wire/carrier.h"

namespace pctx::wire {
namespace {

constexpr std::size_t kMostFarLines = 1024;
// The near end says something every ten seconds. One whose machine is gone does not close anything.
constexpr auto kSilence = std::chrono::seconds{90}, kLook = std::chrono::seconds{15};

class Far : public Carrier {
 public:
  Far(sys::Loop& loop, Fd in, Fd out, std::function<Result<Fd>()> connect)
      : Carrier(loop, Side::far, std::move(in), std::move(out)), connect_(std::move(connect)) {}

 private:
  Result<void> start() override;
  Result<void> take(Line* line, const Frame& frame) override;
  void converse(Line& line) override;
  bool pass_on(Line& line, wire::Packet packet);
  void lease(Line& line, std::vector<Fd> fds);
  void send_report(Line& line);
  void look();

  std::function<Result<Fd>()> connect_;
  Fd broker_;  // says nothing: its end is the Broker's
};

Result<void> Far::start() {
  broker_ = PCTX_TRY(connect_());
  loop_.watch(broker_.get(), EPOLLIN, [this](std::uint32_t) {
    loop_.forget(broker_.get());
    for (auto& [id, line] : lines_) drop_line(*line);
    leave();
    settle();
    (void)loop_.after(std::chrono::seconds{5}, [this] { loop_.stop(); });  // nobody reads what is left
  });
  look();
  return {};
}

void Far::look() {
  pollfd ready{in_fd_.get(), POLLIN, 0};
  // After a pause of this very process what was said meanwhile is still unread.
  if (sys::Loop::Clock::now() - heard_ > kSilence && ::poll(&ready, 1, 0) == 0) return loop_.stop();
  (void)loop_.after(kLook, [this] { look(); });
}

Result<void> Far::take(Line* line, const Frame& frame) {
  const auto refuse = [](const char* what) -> Result<void> { return unavailable(what, "try again"); };
  switch (frame.kind) {
    case Kind::open: {
      if (line != nullptr || frame.line <= highest_) return refuse("a line was opened twice");
      auto control = lines_.size() < kMostFarLines ? connect_() : Result<Fd>{unavailable("too many lines", "")};
      if (control) {
        add_line(frame.line, *std::move(control));
      } else {
        highest_ = frame.line;
        send({Kind::close, 0, frame.line});
      }
      return {};
    }
    case Kind::packet:
      if (!wire::send(line->control.get(), frame.body)) drop_line(*line);
      return {};
    case Kind::drop:
      if (frame.lease > line->lease) return refuse("a lease was dropped that there is not");
      if (frame.lease == line->lease) drop_lease(*line);
      pump(*line);
      return {};
    case Kind::close:
      line->closing = true;
      drop_line(*line);
      return {};
    default:
      return refuse("the near end sent what only a far end sends");
  }
}

// Packets come after everything that was to be read before them: how a Worker ended after its answer and its output.
void Far::converse(Line& line) {
  if (line.report) send_report(line);
  while (line.ready && !line.report && dry(line) && !full()) {
    wire::Packet packet;
    const Received received = receive(line.control.get(), packet);
    if (received == Received::nothing) {
      line.ready = false;
    } else if (received != Received::packet || !pass_on(line, std::move(packet))) {
      return drop_line(line);
    }
  }
}

bool Far::pass_on(Line& line, wire::Packet packet) {
  if (packet.fds.size() == kStreams) {
    lease(line, std::move(packet.fds));
  } else if (packet.fds.size() == 1) {
    struct stat status {};
    if (::fstat(packet.fds[0].get(), &status) != 0 || status.st_size <= 0 ||
        static_cast<std::uint64_t>(status.st_size) > kLongestReport)
      return false;
    line.report = std::move(packet.fds[0]);
    line.report_size = static_cast<std::uint64_t>(status.st_size);
    (void)::lseek(line.report.get(), 0, SEEK_SET);
    send_report(line);
  } else if (packet.fds.empty()) {
    send_packet(line, packet.text);
  } else {
    return false;
  }
  return true;
}

void Far::lease(Line& line, std::vector<Fd> fds) {
  drop_lease(line);
  ++line.lease;
  for (std::size_t i = 0; i < kStreams; ++i) {
    Channel& channel = line.streams[i];
    channel.fd = std::move(fds[i]);
    (void)::fcntl(channel.fd.get(), F_SETFL, ::fcntl(channel.fd.get(), F_GETFL) | O_NONBLOCK);
    channel.reads = true;
    channel.writes = i == 0;
  }
  send({Kind::leased, 0, line.id, line.lease});
}

// Piece by piece, as the stream has room.
void Far::send_report(Line& line) {
  std::string piece(kMaxData, '\0');
  while (line.report && !full()) {
    const ssize_t got = ::read(line.report.get(), piece.data(), std::min<std::uint64_t>(kMaxData, line.report_size));
    if (got <= 0) return drop_line(line);
    line.report_size -= static_cast<std::uint64_t>(got);
    const Kind kind = line.report_size == 0 ? Kind::packet : Kind::piece;
    if (kind == Kind::packet) line.report.reset();
    send({kind, 0, line.id, 0, {piece.data(), static_cast<std::size_t>(got)}});
  }
}

}  // namespace

Result<void> carry_far(Fd in, Fd out, std::function<Result<Fd>()> connect) {
  sys::Loop loop = PCTX_TRY(sys::Loop::make());
  return Far{loop, std::move(in), std::move(out), std::move(connect)}.run();
}

}  // namespace pctx::wire
