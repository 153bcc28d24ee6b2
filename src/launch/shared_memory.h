// Memory that a box's first processes share with us until they execute something else: what they have to do is written
// there after they were born. Nothing is ever freed in it, and pointers into it hold on both sides.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace pctx {

class SharedMemory {
 public:
  static Result<SharedMemory> make();
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  template <class T>
  T* array(std::span<const T> items) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<T*>(copy(items.data(), items.size_bytes(), alignof(T)));
  }
  template <class T>
  T* array(const std::vector<T>& items) {
    return array(std::span<const T>{items});
  }
  const char* keep(std::string_view text);
  const char* const* list(const std::vector<std::string>& items);  // nullptr at the end

 private:
  void* take(std::size_t size, std::size_t alignment);
  void* copy(const void* data, std::size_t size, std::size_t alignment);

  std::byte* begin_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace pctx
