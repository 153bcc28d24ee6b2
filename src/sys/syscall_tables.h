// The tables behind sys/syscalls.h, for code that resolves names while it is being compiled. Everyone else asks there.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "sys/syscalls.h"

namespace pctx::syscall_tables {

struct SyscallEntry {
  std::uint16_t number;
  std::string_view name;
};

inline constexpr SyscallEntry kX86_64[] = {
#include "sys/syscalls_x86_64.inc"
};
inline constexpr SyscallEntry kAarch64[] = {
#include "sys/syscalls_aarch64.inc"
};

template <std::size_t n>
constexpr int limit_of(const SyscallEntry (&entries)[n]) {
  return entries[n - 1].number + 1;
}

// Both indexes are made by the compiler: nothing runs at start-up, and the tables stay in read-only pages that are only
// touched when somebody asks.
template <std::size_t n>
constexpr std::array<std::uint16_t, n> order_by_name(const SyscallEntry (&entries)[n]) {
  std::array<std::uint16_t, n> order{};
  for (std::size_t i = 0; i < n; ++i) order[i] = static_cast<std::uint16_t>(i);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return entries[a].name < entries[b].name; });
  return order;
}

// Position + 1 by number; 0 where the architecture has no such call.
template <int limit, std::size_t n>
constexpr std::array<std::uint16_t, limit> order_by_number(const SyscallEntry (&entries)[n]) {
  std::array<std::uint16_t, limit> order{};
  for (std::size_t i = 0; i < n; ++i) order[entries[i].number] = static_cast<std::uint16_t>(i + 1);
  return order;
}

template <std::size_t n>
constexpr bool is_strictly_ascending(const SyscallEntry (&entries)[n]) {
  for (std::size_t i = 1; i < n; ++i) {
    if (entries[i - 1].number >= entries[i].number) return false;
  }
  return true;
}
static_assert(is_strictly_ascending(kX86_64) && is_strictly_ascending(kAarch64));

inline constexpr auto kX86_64ByName = order_by_name(kX86_64);
inline constexpr auto kX86_64ByNumber = order_by_number<limit_of(kX86_64)>(kX86_64);
inline constexpr auto kAarch64ByName = order_by_name(kAarch64);
inline constexpr auto kAarch64ByNumber = order_by_number<limit_of(kAarch64)>(kAarch64);

constexpr std::optional<int> find(const SyscallEntry* entries, const std::uint16_t* first, const std::uint16_t* last,
                                  std::string_view name) {
  const auto* it =
      std::lower_bound(first, last, name, [&](std::uint16_t i, std::string_view key) { return entries[i].name < key; });
  if (it == last || entries[*it].name != name) return std::nullopt;
  return entries[*it].number;
}

constexpr std::optional<int> number_of(Arch arch, std::string_view name) {
  if (arch == Arch::x86_64) {
    return find(kX86_64, kX86_64ByName.data(), kX86_64ByName.data() + kX86_64ByName.size(), name);
  }
  return find(kAarch64, kAarch64ByName.data(), kAarch64ByName.data() + kAarch64ByName.size(), name);
}

}  // namespace pctx::syscall_tables
