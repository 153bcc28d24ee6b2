#include "launch/shared_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

#include "base/fd.h"

namespace pctx {
namespace {

// Address space, not memory: the kernel lets nobody execute anything with more words than a tenth of this.
constexpr std::size_t kSize = std::size_t{64} << 20;

}  // namespace

Result<SharedMemory> SharedMemory::make() {
  SharedMemory memory;
  // A file of its own: shared memory without a name is what the watchdog charges a guest for with its whole size.
  const Fd file{::memfd_create("pctx-plan", MFD_CLOEXEC)};
  if (!file || ::ftruncate(file.get(), kSize) != 0) return os_error("cannot make memory to share with a box");
  void* begin = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (begin == MAP_FAILED) return os_error("cannot share memory with the box's first processes");
  memory.begin_ = static_cast<std::byte*>(begin);
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), used_(std::exchange(other.used_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(used_, other.used_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (begin_ != nullptr) ::munmap(begin_, kSize);
}

void* SharedMemory::take(std::size_t size, std::size_t alignment) {
  const std::size_t at = (used_ + alignment - 1) / alignment * alignment;
  if (begin_ == nullptr || size > kSize || at > kSize - size) throw std::bad_alloc{};
  used_ = at + size;
  return begin_ + at;
}

void* SharedMemory::copy(const void* data, std::size_t size, std::size_t alignment) {
  void* place = take(size, alignment);
  if (size > 0) std::memcpy(place, data, size);
  return place;
}

const char* SharedMemory::keep(std::string_view text) {
  char* place = static_cast<char*>(take(text.size() + 1, 1));
  if (!text.empty()) std::memcpy(place, text.data(), text.size());
  place[text.size()] = '\0';
  return place;
}

const char* const* SharedMemory::list(const std::vector<std::string>& items) {
  auto* pointers = static_cast<const char**>(take((items.size() + 1) * sizeof(char*), alignof(char*)));
  for (std::size_t i = 0; i < items.size(); ++i) pointers[i] = keep(items[i]);
  pointers[items.size()] = nullptr;
  return pointers;
}

}  // namespace pctx
