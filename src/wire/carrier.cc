#include "wire/carrier.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <csignal>

#include <fmt/format.h>

namespace pctx::wire {
namespace {

constexpr int kRounds = 4;  // of reading one descriptor before others have their turn
constexpr std::size_t kMostSaid = 400;
constexpr auto kFresh = std::chrono::milliseconds{5};

Error broken_rule(const std::string& what) {
  return unavailable(fmt::format("the other end of the stream broke its rules: {}", what), "try again");
}

void make_nonblocking(int fd) { (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

bool has_data(int fd) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, 0) > 0;
}

// The Worker's own words reach neither a terminal nor the end of a line.
std::string shown(std::string_view said) {
  std::string line;
  for (const char c : said.substr(0, kMostSaid)) line += c >= ' ' && c < 0x7f ? c : ' ';
  return line;
}

}  // namespace

Carrier::Carrier(sys::Loop& loop, Side side, Fd in, Fd out)
    : loop_(loop), side_(side), in_fd_(std::move(in)), out_fd_(std::move(out)) {
  make_nonblocking(in_fd_.get());
  make_nonblocking(out_fd_.get());
}

Result<void> Carrier::run() {
  ::signal(SIGPIPE, SIG_IGN);
  loop_.watch(in_fd_.get(), EPOLLIN, [this](std::uint32_t) { on_input(); });
  PCTX_TRY(start());
  settle();
  PCTX_TRY(loop_.run());
  return std::move(result_);
}

void Carrier::on_input() {
  std::array<char, 64_KiB> bytes;
  const ssize_t got = ::read(in_fd_.get(), bytes.data(), bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return loop_.stop();  // whatever else was to be said, nobody hears it
  heard_ = sys::Loop::Clock::now();
  stalled_ |= std::exchange(asked_, false);  // who waited for a word of it goes on
  reader_.feed({bytes.data(), static_cast<std::size_t>(got)});
  for (;;) {
    auto frame = reader_.next();
    if (frame && !*frame) break;
    auto taken = frame ? take_any(**frame) : Result<void>{std::move(frame).error()};
    if (!taken) {
      result_ = std::move(taken);
      return loop_.stop();
    }
  }
  settle();
}

Result<void> Carrier::take_any(const Frame& frame) {
  if (frame.kind == Kind::ping) {
    if (side_ == Side::far) send({Kind::ping});
    return {};
  }
  Line* line = find_line(frame.line);
  if (line == nullptr && frame.kind != Kind::open) {
    // It may have been closed here while this was on its way.
    return frame.line <= highest_ ? Result<void>{} : broken_rule(fmt::format("there is no line {}", frame.line));
  }
  if (frame.kind == Kind::data || frame.kind == Kind::credit || frame.kind == Kind::end)
    return take_bytes(*line, frame);
  return take(line, frame);
}

Result<void> Carrier::take_bytes(Line& line, const Frame& frame) {
  if (frame.lease > line.lease) return broken_rule("bytes for a lease that there is not");
  Channel& channel = line.streams[frame.stream];
  if (frame.lease < line.lease || !(channel.reads || channel.writes)) return {};  // on its way when it was dropped
  if (frame.kind == Kind::credit) {
    std::uint32_t bytes = 0;
    for (std::size_t i = 4; i-- > 0;) bytes = bytes << 8 | static_cast<unsigned char>(frame.body[i]);
    if (bytes > kWindow - channel.credit) return broken_rule("more was taken than was sent");
    channel.credit += bytes;
  } else {
    if (!channel.writes || channel.ending) return broken_rule("bytes for a descriptor that takes none");
    if (frame.kind == Kind::end) {
      channel.ending = true;
      channel.reset = frame.body != std::string_view{"\0", 1};
    } else {
      channel.outstanding += frame.body.size();
      if (channel.outstanding > kWindow) return broken_rule("more bytes than the window has room for");
      channel.pending += frame.body;
    }
  }
  pump(line);
  return {};
}

Line& Carrier::add_line(std::uint32_t id, Fd control) {
  highest_ = id;
  auto line = std::make_unique<Line>();
  line->id = id;
  line->control = std::move(control);
  Line& added = *line;
  lines_[id] = std::move(line);
  watch(added);
  return added;
}

Line* Carrier::find_line(std::uint32_t id) {
  const auto found = lines_.find(id);
  return found == lines_.end() || found->second->gone ? nullptr : found->second.get();
}

void Carrier::send_packet(const Line& line, std::string_view text) { send({Kind::packet, 0, line.id, 0, text}); }

void Carrier::drop_line(Line& line) {
  if (line.gone) return;
  if (!line.closing) send({Kind::close, 0, line.id});
  drop_lease(line);
  loop_.forget(line.control.get());
  line.gone = true;
}

void Carrier::drop_lease(Line& line) {
  for (Channel& channel : line.streams) {
    loop_.forget(channel.fd.get());
    channel = Channel{};
  }
  line.theirs.reset();
  line.spoke = line.begun = false;
}

// A caller learns that its call was never read, and sends it again, as long as we have not read it ourselves. What has
// left for an end that died meanwhile is in doubt.
bool Carrier::is_alive() {
  if (sys::Loop::Clock::now() - heard_ < kFresh) return true;
  if (!asked_) send({Kind::ping});
  asked_ = true;
  return false;
}

bool Carrier::full() {
  const bool is = out_.size() >= kHighWater;
  stalled_ |= is;
  return is;
}

bool Carrier::written(const Line& line) const {
  return line.streams[0].pending.empty() && line.streams[1].pending.empty() && line.streams[2].pending.empty();
}

bool Carrier::dry(const Line& line) const { return line.streams[0].dry && line.streams[1].dry && line.streams[2].dry; }

void Carrier::pump(Line& line) {
  if (line.gone) return;
  auto& [socket, out, err] = line.streams;
  read_stream(line, 1);
  read_stream(line, 2);
  if (line.spoke || (out.dry && err.dry)) read_stream(line, 0);
  write_stream(line, 1);
  write_stream(line, 2);
  if (line.spoke || (out.pending.empty() && err.pending.empty())) write_stream(line, 0);
  if (!line.gone) converse(line);
  if (!line.gone) watch(line);
}

void Carrier::read_stream(Line& line, std::size_t index) {
  Channel& channel = line.streams[index];
  if (!channel.reads) return;
  if (side_ == Side::near && !line.begun && (!has_data(channel.fd.get()) || !is_alive())) return;
  std::array<char, kMaxData> bytes;
  channel.dry = false;
  for (int round = 0; round < kRounds && channel.credit > 0 && !full(); ++round) {
    const ssize_t got = ::read(channel.fd.get(), bytes.data(), std::min(bytes.size(), channel.credit));
    if (got > 0) {
      channel.credit -= static_cast<std::size_t>(got);
      if (index == 0 && side_ == Side::far) line.spoke = true;
      line.begun = true;
      send({Kind::data,
            static_cast<std::uint8_t>(index),
            line.id,
            line.lease,
            {bytes.data(), static_cast<std::size_t>(got)}});
      continue;
    }
    channel.dry = true;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // All that was written is told before: what is still missing then has never been read.
    give_credit(line, index, true);
    const bool unread = got < 0 && errno == ECONNRESET;
    channel.reads = false;
    return send({Kind::end, static_cast<std::uint8_t>(index), line.id, line.lease, {unread ? "\1" : "\0", 1}});
  }
}

void Carrier::write_stream(Line& line, std::size_t index) {
  Channel& channel = line.streams[index];
  while (!channel.pending.empty() && !channel.deaf) {
    const ssize_t put = ::write(channel.fd.get(), channel.pending.data(), channel.pending.size());
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (put <= 0) {
      channel.deaf = true;
      break;
    }
    if (index == 0 && side_ == Side::near) line.spoke = true;
    channel.pending.erase(0, static_cast<std::size_t>(put));
    channel.taken += static_cast<std::size_t>(put);
  }
  if (channel.deaf) {
    // A Worker that closed its socket has not read it; a caller that closed its end does not want it.
    if (side_ == Side::near || index != 0) channel.taken += channel.pending.size();
    channel.pending.clear();
  }
  give_credit(line, index, false);
  if (channel.ending && !channel.ended) end_stream(line, index);
}

void Carrier::end_stream(Line& line, std::size_t index) {
  Channel& channel = line.streams[index];
  channel.ended = true;
  if (side_ == Side::far) {
    (void)::shutdown(channel.fd.get(), SHUT_WR);
    return;
  }
  // The kernel tells the caller "reset" if we close our end with something unread in it: what was sent and never
  // credited has not been read, and if all of it was read already by us, a byte of ours stands for it.
  if (index == 0 && (channel.reset || channel.credit < kWindow))
    (void)!::send(line.theirs.get(), "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (index == 0) line.theirs.reset();
  loop_.forget(channel.fd.get());
  channel.watched = 0;
  channel.reads = false;
  channel.dry = true;
  channel.fd.reset();
}

void Carrier::give_credit(Line& line, std::size_t index, bool all) {
  Channel& channel = line.streams[index];
  if (channel.taken == 0 || (!all && channel.taken < kWindow / 4)) return;
  const auto bytes = static_cast<std::uint32_t>(channel.taken);
  char body[4];
  for (int i = 0; i < 4; ++i) body[i] = static_cast<char>(bytes >> (8 * i) & 0xff);
  send({Kind::credit, static_cast<std::uint8_t>(index), line.id, line.lease, {body, 4}});
  channel.outstanding -= channel.taken;
  channel.taken = 0;
}

// A descriptor without an interest is not watched at all: the kernel would tell of its other end's death again and
// again.
void Carrier::watch(Line& line) {
  const auto set = [&](int fd, std::uint32_t wanted, std::uint32_t& watched, bool control) {
    if (fd < 0 || wanted == watched) return;
    watched = wanted;
    if (wanted == 0) return loop_.forget(fd);
    loop_.watch(fd, wanted, [this, id = line.id, control](std::uint32_t) {
      if (Line* found = find_line(id)) {
        found->ready |= control;
        pump(*found);
      }
      settle();
    });
  };
  const auto& [socket, out, err] = line.streams;
  const bool reads_socket = side_ == Side::far ? line.spoke || (out.dry && err.dry) : line.begun || !asked_;
  const bool writes_socket = line.spoke || (out.pending.empty() && err.pending.empty());
  for (std::size_t i = 0; i < kStreams; ++i) {
    Channel& channel = line.streams[i];
    std::uint32_t wanted = 0;
    if (channel.reads && channel.credit > 0 && !full() && (i != 0 || reads_socket)) wanted |= EPOLLIN;
    if (!channel.pending.empty() && (i != 0 || writes_socket)) wanted |= EPOLLOUT;
    set(channel.fd.get(), wanted, channel.watched, false);
  }
  set(line.control.get(), line.ready || full() ? 0U : std::uint32_t{EPOLLIN}, line.watched, true);
}

void Carrier::settle() {
  flush();
  if (stalled_ && out_.size() < kHighWater) {
    stalled_ = false;
    for (auto& [id, line] : lines_) pump(*line);
    flush();
    // Others have their turn in between.
    if (stalled_ && out_.size() < kHighWater) (void)loop_.after({}, [this] { settle(); });
  }
  std::erase_if(lines_, [](const auto& each) { return each.second->gone; });
  if (leaving_ && out_.empty()) loop_.stop();
}

void Carrier::flush() {
  while (!out_.empty()) {
    const ssize_t put = ::write(out_fd_.get(), out_.data(), out_.size());
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (put <= 0) return loop_.stop();
    out_.erase(0, static_cast<std::size_t>(put));
  }
  if (out_.empty() == !out_watched_) return;
  out_watched_ = !out_.empty();
  if (out_watched_)
    loop_.watch(out_fd_.get(), EPOLLOUT, [this](std::uint32_t) { settle(); });
  else
    loop_.forget(out_fd_.get());
}

Result<void> greet(int in, int out, Millis patience) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto gone = [](std::string_view said) {
    return unavailable(said.empty() ? std::string{"the other end of the stream is gone"}
                                    : fmt::format("the other end of the stream said '{}'", shown(said)),
                       "both ends must be pctx-sandbox of the same version");
  };
  if (::write(out, kGreeting.data(), kGreeting.size()) != static_cast<ssize_t>(kGreeting.size())) return gone("");
  const auto until = sys::Loop::Clock::now() + patience;
  std::string said;
  while (said.size() < kGreeting.size()) {
    const auto left = std::chrono::duration_cast<Millis>(until - sys::Loop::Clock::now()).count();
    pollfd ready{in, POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) == 0)
      return unavailable("the other end of the stream does not answer", "try the command by hand");
    // No byte beyond it: those are frames.
    char bytes[kGreeting.size()];
    const ssize_t got = ::read(in, bytes, kGreeting.size() - said.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return gone(said);
    said.append(bytes, static_cast<std::size_t>(got));
    if (!kGreeting.starts_with(said)) return gone(said);
  }
  return {};
}

}  // namespace pctx::wire
