// Names and numbers of system calls, per architecture, as data that is part of the program: what a filter says must not
// depend on the headers of the machine that built it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pctx {

enum class Arch : std::uint8_t { x86_64, aarch64 };

#if defined(__x86_64__)
inline constexpr Arch kHostArch = Arch::x86_64;
#elif defined(__aarch64__)
inline constexpr Arch kHostArch = Arch::aarch64;
#else
#error "only x86_64 and aarch64 have a table of system calls"
#endif

// The value of seccomp_data.arch for calls made through the architecture's own 64-bit ABI (AUDIT_ARCH_*).
constexpr std::uint32_t audit_arch(Arch arch) { return arch == Arch::x86_64 ? 0xc000'003eu : 0xc000'00b7u; }
// x32 calls arrive under x86_64's own audit value; only this bit of the number tells them apart.
inline constexpr std::uint32_t kX32Bit = 0x4000'0000u;

std::string_view arch_name(Arch arch);
std::optional<int> syscall_number(Arch arch, std::string_view name);
// Empty for a number that the table does not know.
std::string_view syscall_name(Arch arch, int number);
// One past the highest number of the table: what lies beyond was added to Linux after the table was written.
int syscall_limit(Arch arch);

}  // namespace pctx
