// The Broker's protocol where descriptors cannot travel: its packets, and the bytes of what would have been passed, as
// frames of one stream of bytes. Pure; `carrier.h` has the two ends.
//
// A frame is sixteen bytes and a body: the body's size, the line (one caller's connection), the lease on that line
// (each one has another number), the kind, and the descriptor of the lease that it is about. Only the ends write
// headers: what a guest says is a body of theirs, whatever it looks like. There is no way to find the next frame after
// a wrong one, and nobody looks for it: a wrong frame ends the stream.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "wire/packet.h"

namespace pctx::wire {

// What each end says first; whatever else a command prints is no stream of ours.
inline constexpr std::string_view kGreeting = "pctx-sandbox stream 1\n";

inline constexpr std::size_t kFrameHeader = 16;
inline constexpr std::size_t kMaxData = 64_KiB;
// How much of one descriptor may be on its way, unread by whom it is for.
inline constexpr std::size_t kWindow = 256_KiB;
// The socket of a Worker, its standard output and its standard error.
inline constexpr std::size_t kStreams = 3;

enum class Kind : std::uint8_t {
  open = 1,  // a caller is there
  packet,    // one packet of the protocol
  piece,     // a part of a packet that is too long for one; `packet` has the rest
  leased,    // the packet that has a Worker's descriptors beside it
  data,      // bytes of a descriptor
  credit,    // so many bytes have been taken (u32)
  end,       // no more bytes; the body is 1 if some of the other direction were never read
  drop,      // the caller needs the lease's descriptors no more
  close,     // the connection is gone
  ping,      // we live; the far end answers with the same
};

struct Frame {
  Kind kind = Kind::ping;
  std::uint8_t stream = 0;
  std::uint32_t line = 0, lease = 0;
  std::string_view body = {};
};

void append_frame(std::string& out, const Frame& frame);

// Takes bytes as they come. It holds at most one frame and what came with its end.
class FrameReader {
 public:
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  // The next frame that is whole, valid until the next call of anything; an error ends the stream.
  Result<std::optional<Frame>> next();
  std::size_t held() const { return buffer_.size() - at_; }

 private:
  std::string buffer_;
  std::size_t at_ = 0;
};

}  // namespace pctx::wire
