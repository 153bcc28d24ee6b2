#include "sys/syscalls.h"

#include <cstddef>

#include "sys/syscall_tables.h"

namespace pctx {

using namespace syscall_tables;

std::string_view arch_name(Arch arch) { return arch == Arch::x86_64 ? "x86_64" : "aarch64"; }

std::optional<int> syscall_number(Arch arch, std::string_view name) { return number_of(arch, name); }

std::string_view syscall_name(Arch arch, int number) {
  if (number < 0 || number >= syscall_limit(arch)) return {};
  const auto index = static_cast<std::size_t>(number);
  const std::uint16_t position = arch == Arch::x86_64 ? kX86_64ByNumber[index] : kAarch64ByNumber[index];
  if (position == 0) return {};
  return (arch == Arch::x86_64 ? kX86_64 : kAarch64)[position - 1].name;
}

int syscall_limit(Arch arch) { return arch == Arch::x86_64 ? limit_of(kX86_64) : limit_of(kAarch64); }

}  // namespace pctx
