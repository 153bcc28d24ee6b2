// The two ends of a stream that carries callers to a Broker on another machine. Neither is the Broker: the far end is
// an ordinary caller of it, the near end looks to callers as a Broker would and makes descriptors anew. So each side
// passes descriptors among its own processes, and between the machines go frames.
//
// Neither end trusts what it reads, waits for anybody, or holds more than a window for each descriptor: who has not
// taken what it was sent is sent no more.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "base/units.h"
#include "sys/loop.h"
#include "wire/stream.h"

namespace pctx::wire {

inline constexpr std::uint64_t kLongestReport = 64_MiB;

// One descriptor of a lease.
struct Channel {
  Fd fd;
  std::string pending;           // from the other end, on its way to `fd`
  std::size_t outstanding = 0;   // of what came, not yet credited: at most a window
  std::size_t taken = 0;         // of that, written to `fd`
  std::size_t credit = kWindow;  // bytes that may still go to the other end
  std::uint32_t watched = 0;
  bool reads = false;   // its bytes go to the other end
  bool writes = false;  // it takes bytes of the other end
  bool dry = true;      // there was nothing to read a moment ago
  bool deaf = false;    // nobody reads what is written to it: what comes is dropped
  bool ending = false, ended = false, reset = false;
};

// One caller's connection, and the latest lease on it.
struct Line {
  struct Packet {
    std::string text;
    std::vector<Fd> fds;
  };
  std::uint32_t id = 0, lease = 0, watched = 0;
  Fd control;
  std::array<Channel, kStreams> streams;
  // The first bytes of a Worker's socket are its answer, which comes after what it printed: they overtake nothing.
  bool spoke = false;
  bool begun = false;       // bytes of the caller's have gone to this lease
  bool ready = false;       // there is something to read at `control`
  bool closing = false;     // the other end is gone; what it said is still passed on
  bool gone = false;        // to be forgotten
  std::deque<Packet> held;  // near: for the caller, after what came before on other descriptors
  Fd theirs;                // near: the caller's end of the socket, to say that nobody has read what it sent
  Fd report;                // a packet that is too long for one
  std::uint64_t report_size = 0;
};

class Carrier {
 public:
  enum class Side { near, far };
  Carrier(sys::Loop& loop, Side side, Fd in, Fd out);
  virtual ~Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  // Until the stream ends, or there is no reason to go on. An error: the other end broke the rules.
  Result<void> run();

 protected:
  virtual Result<void> take(Line* line, const Frame& frame) = 0;  // open, packet, piece, leased, drop, close
  virtual void converse(Line& line) = 0;                          // packets between `control` and the stream
  virtual Result<void> start() { return {}; }

  void send(const Frame& frame) { append_frame(out_, frame); }
  void send_packet(const Line& line, std::string_view text);
  bool is_alive();  // the other end, as far as we know; if not, it is asked, and nothing begins until it has answered
  bool full();      // nothing more is to be read until the stream has taken what there is
  Line& add_line(std::uint32_t id, Fd control);
  Line* find_line(std::uint32_t id);
  void drop_line(Line& line);  // and says so
  void drop_lease(Line& line);
  bool written(const Line& line) const;  // all that came for its descriptors
  bool dry(const Line& line) const;      // all of them
  void pump(Line& line);                 // after everything that happens to it
  void settle();                         // after every event
  void leave() { leaving_ = true; }

  sys::Loop& loop_;
  const Side side_;
  std::map<std::uint32_t, std::unique_ptr<Line>> lines_;
  std::uint32_t highest_ = 0;  // number of a line
  sys::Loop::Clock::time_point heard_ = sys::Loop::Clock::now();
  const Fd in_fd_, out_fd_;

 private:
  static constexpr std::size_t kHighWater = 1_MiB;

  void on_input();
  Result<void> take_any(const Frame& frame);
  Result<void> take_bytes(Line& line, const Frame& frame);
  void read_stream(Line& line, std::size_t index);
  void write_stream(Line& line, std::size_t index);
  void end_stream(Line& line, std::size_t index);
  void give_credit(Line& line, std::size_t index, bool all);
  void watch(Line& line);
  void flush();

  std::string out_;
  bool out_watched_ = false, stalled_ = false, leaving_ = false, asked_ = false;
  FrameReader reader_;
  std::string greeting_;
  Result<void> result_ = {};
};

// The far end: every line is a connection that `connect` makes. It ends with the stream, and with the Broker.
Result<void> carry_far(Fd in, Fd out, std::function<Result<Fd>()> connect);

// The near end: whoever connects to `listener` and is this user becomes a line. It leaves when nobody has been there
// for `idle`. The greeting must have been exchanged.
Result<void> carry_near(Fd in, Fd out, Fd listener, std::chrono::seconds idle);

// Sends our greeting and waits for theirs; what else was said is in the error.
Result<void> greet(int in, int out, Millis patience);

}  // namespace pctx::wire
