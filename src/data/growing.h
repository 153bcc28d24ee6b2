// A growing array of trivial values whose growth may fail instead of throwing. With it the decoder needs nothing of the
// C++ runtime, so the extension module asks the host for a C library of 2012 and brings no second unwinder into Python.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <type_traits>

namespace pctx::data {

template <class T>
class Growing {
  static_assert(std::is_trivially_copyable_v<T>, "realloc() moves the values");

 public:
  Growing() = default;
  ~Growing() { std::free(values_); }
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;

  // False when there is no memory; the array is then as it was.
  [[nodiscard]] bool push_back(const T& value) {
    const T copy = value;  // it may lie in the array that moves
    if (size_ == capacity_ && !grow()) return false;
    values_[size_++] = copy;
    return true;
  }
  void pop_back() { --size_; }
  void shrink(std::size_t size) { size_ = size; }
  void clear() { size_ = 0; }

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& back() { return values_[size_ - 1]; }
  const T& back() const { return values_[size_ - 1]; }
  T& operator[](std::size_t index) { return values_[index]; }
  const T* begin() const { return values_; }
  const T* end() const { return values_ + size_; }

 private:
  bool grow() {
    constexpr std::size_t kEach = sizeof(T);  // NOLINT(bugprone-sizeof-expression): T may be a pointer
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 4 / kEach;
    if (capacity_ > kMost) return false;
    const std::size_t wanted = std::max<std::size_t>(16, 2 * capacity_);
    void* moved = std::realloc(values_, wanted * kEach);
    if (moved == nullptr) return false;
    values_ = static_cast<T*>(moved);
    capacity_ = wanted;
    return true;
  }

  T* values_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace pctx::data
