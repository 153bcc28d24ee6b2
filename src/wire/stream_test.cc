#include "wire/stream.h"

#include <gtest/gtest.h>

namespace pctx::wire {
namespace {

std::string one(const Frame& frame) {
  std::string bytes;
  append_frame(bytes, frame);
  return bytes;
}

std::string changed(std::string bytes, std::size_t at, char value) {
  bytes[at] = value;
  return bytes;
}

bool is_refused(const std::string& bytes) {
  FrameReader reader;
  reader.feed(bytes);
  return !reader.next().has_value();
}

const std::string kData = one({Kind::data, 1, 2, 3, "bytes"});

TEST(Stream, frames_come_out_as_they_went_in) {
  const std::string all = one({Kind::ping}) + one({Kind::open, 0, 7}) + kData +
                          one({Kind::packet, 0, 7, 0, std::string(kMaxPacket, 'p')}) + one({Kind::drop, 0, 7, 1});
  // Cut at every byte: what is missing is waited for, and nothing is lost.
  for (std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, all.size()}) {
    FrameReader reader;
    std::string again;
    for (std::size_t at = 0; at < all.size(); at += step) {
      reader.feed(std::string_view{all}.substr(at, step));
      for (auto frame = reader.next(); frame && *frame; frame = reader.next()) append_frame(again, **frame);
    }
    EXPECT_EQ(again, all) << step;
    EXPECT_EQ(reader.held(), 0U);
  }
}

TEST(Stream, half_a_frame_is_waited_for) {
  for (std::size_t size = 0; size < kData.size(); ++size) {
    FrameReader reader;
    reader.feed(std::string_view{kData}.substr(0, size));
    const auto frame = reader.next();
    ASSERT_TRUE(frame.has_value()) << size;
    EXPECT_FALSE(frame->has_value()) << size;
  }
}

TEST(Stream, a_body_that_looks_like_frames_is_a_body) {
  const std::string inner = one({Kind::close, 0, 1}) + one({Kind::packet, 0, 1, 0, "forged"});
  FrameReader reader;
  reader.feed(one({Kind::data, 0, 2, 1, inner}));
  const auto frame = reader.next();
  ASSERT_TRUE(frame && *frame);
  EXPECT_EQ((*frame)->body, inner);
  EXPECT_FALSE(reader.next()->has_value());
}

TEST(Stream, what_has_no_meaning_is_refused_before_its_body_comes) {
  const std::string header = kData.substr(0, kFrameHeader);
  EXPECT_FALSE(is_refused(header));
  EXPECT_TRUE(is_refused(changed(header, 12, 0)));   // kinds
  EXPECT_TRUE(is_refused(changed(header, 12, 11)));  //
  EXPECT_TRUE(is_refused(changed(header, 12, -1)));  //
  EXPECT_TRUE(is_refused(changed(header, 13, 3)));   // descriptors
  EXPECT_TRUE(is_refused(changed(header, 14, 1)));   // bits that mean nothing
  EXPECT_TRUE(is_refused(changed(header, 3, 127)));  // a body of 2 GB
  EXPECT_TRUE(is_refused(changed(header, 2, 1)));    // one byte more than there may be, and a bit
  EXPECT_TRUE(is_refused(changed(header, 0, 0)));    // none
  EXPECT_TRUE(is_refused(changed(header, 4, 0)));    // no line
  EXPECT_TRUE(is_refused(changed(header, 8, 0)));    // no lease
  EXPECT_TRUE(is_refused(one({Kind::ping, 0, 1})));  // a line for what has none
  EXPECT_TRUE(is_refused(one({Kind::packet, 1, 1, 0, "x"})));
  EXPECT_TRUE(is_refused(one({Kind::packet, 0, 1, 1, "x"})));
  EXPECT_TRUE(is_refused(one({Kind::credit, 0, 1, 1, "xyz"})));
  EXPECT_TRUE(is_refused(one({Kind::packet, 0, 1, 0, std::string(kMaxPacket + 1, 'x')})));
}

}  // namespace
}  // namespace pctx::wire
