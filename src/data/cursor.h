// A bounded reader of untrusted bytes: every read checks what is left, no length is believed before it was compared.
// Knows nothing of Python.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace pctx::data {

class Cursor {
 public:
  explicit Cursor(std::string_view bytes) noexcept : begin_(bytes.data()), at_(begin_), end_(begin_ + bytes.size()) {}

  std::size_t position() const noexcept { return static_cast<std::size_t>(at_ - begin_); }
  std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }

  // A little-endian number, as all of the format's lengths and small integers are.
  template <class T>
  bool read(T& value) noexcept {
    static_assert(std::endian::native == std::endian::little);
    if (left() < sizeof(T)) return false;
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }

  // The one big-endian value of the format.
  bool read_double(double& value) noexcept {
    std::uint64_t bits = 0;
    if (!read(bits)) return false;
    value = std::bit_cast<double>(__builtin_bswap64(bits));
    return true;
  }

  // A length of type Length, then so many bytes, which stay where they are.
  template <class Length>
  bool read_counted(std::string_view& bytes) noexcept {
    Length length = 0;
    if (!read(length) || left() < length) return false;
    bytes = {at_, static_cast<std::size_t>(length)};
    at_ += length;
    return true;
  }

 private:
  const char* begin_;
  const char* at_;
  const char* end_;
};

}  // namespace pctx::data
