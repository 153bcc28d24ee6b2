#include "wire/stream.h"

#include <array>
#include <cstring>

#include <fmt/format.h>

namespace pctx::wire {
namespace {

struct Shape {
  std::size_t least, most;     // of the body
  bool line, lease, streamed;  // which numbers it has
};

// By kind. Everything is refused that has no meaning, so that no two frames mean the same.
constexpr std::array<Shape, 11> kShapes{{
    {1, 0, false, false, false},          // there is no kind 0
    {0, 0, true, false, false},           // open
    {1, kMaxPacket, true, false, false},  // packet
    {1, kMaxData, true, false, false},    // piece
    {0, 0, true, true, false},            // leased
    {1, kMaxData, true, true, true},      // data
    {4, 4, true, true, true},             // credit
    {1, 1, true, true, true},             // end
    {0, 0, true, true, false},            // drop
    {0, 0, true, false, false},           // close
    {0, 0, false, false, false},          // ping
}};

void put(std::string& out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift & 0xff);
}

std::uint32_t get(const char* at) {
  std::uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(at[i]);
  return value;
}

Error broken(std::string_view what) { return unavailable(fmt::format("the stream is broken: {}", what), "try again"); }

}  // namespace

void append_frame(std::string& out, const Frame& frame) {
  put(out, static_cast<std::uint32_t>(frame.body.size()));
  put(out, frame.line);
  put(out, frame.lease);
  out += static_cast<char>(frame.kind);
  out += static_cast<char>(frame.stream);
  out.append(2, '\0');
  out += frame.body;
}

Result<std::optional<Frame>> FrameReader::next() {
  const std::size_t left = buffer_.size() - at_;
  const auto wait = [&] {
    buffer_.erase(0, std::exchange(at_, 0));
    return std::optional<Frame>{};
  };
  if (left < kFrameHeader) return wait();
  const char* head = buffer_.data() + at_;
  const std::size_t size = get(head);
  const auto kind = static_cast<unsigned char>(head[12]), stream = static_cast<unsigned char>(head[13]);
  const Frame frame{static_cast<Kind>(kind), stream, get(head + 4), get(head + 8)};
  // Before the body is waited for: a size alone makes nobody hold anything.
  if (kind == 0 || kind >= kShapes.size()) return broken(fmt::format("there is no frame of kind {}", kind));
  const Shape& shape = kShapes[kind];
  if (size < shape.least || size > shape.most) return broken(fmt::format("{} bytes in a frame of kind {}", size, kind));
  if ((frame.line != 0) != shape.line || (frame.lease != 0) != shape.lease)
    return broken(fmt::format("a frame of kind {} for line {} and lease {}", kind, frame.line, frame.lease));
  if (stream >= (shape.streamed ? kStreams : 1)) return broken(fmt::format("there is no descriptor {}", stream));
  if (head[14] != 0 || head[15] != 0) return broken("bits that mean nothing");
  if (left < kFrameHeader + size) return wait();
  Frame whole = frame;
  whole.body = std::string_view{head + kFrameHeader, size};
  at_ += kFrameHeader + size;
  return std::optional{whole};
}

}  // namespace pctx::wire
