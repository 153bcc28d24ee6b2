#include "sys/syscalls.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <sys/syscall.h>

#include <set>
#include <string_view>

namespace pctx {
namespace {

TEST(Syscalls, names_and_numbers_are_inverse_for_every_entry) {
  for (const Arch arch : {Arch::x86_64, Arch::aarch64}) {
    int known = 0;
    std::set<std::string_view> names;
    for (int number = 0; number < 1000; ++number) {
      const auto name = syscall_name(arch, number);
      if (name.empty()) continue;
      ++known;
      EXPECT_EQ(syscall_number(arch, name), number) << name;
      EXPECT_TRUE(names.insert(name).second) << name << " is listed twice";
    }
    EXPECT_EQ(known, arch == Arch::x86_64 ? 383 : 325);
  }
}

TEST(Syscalls, tables_are_complete_up_to_linux_6_18) {
  for (int number = 0; number <= 336; ++number) EXPECT_FALSE(syscall_name(Arch::x86_64, number).empty()) << number;
  for (int number = 0; number <= 294; ++number) {
    const bool reserved = number >= 244 && number <= 259;  // for calls of single architectures; aarch64 has none
    EXPECT_EQ(syscall_name(Arch::aarch64, number).empty(), reserved) << number;
  }
  for (const Arch arch : {Arch::x86_64, Arch::aarch64}) {
    for (int number = 424; number <= 469; ++number) EXPECT_FALSE(syscall_name(arch, number).empty()) << number;
    EXPECT_EQ(syscall_limit(arch), 470);
  }
}

TEST(Syscalls, calls_since_5_1_have_one_number_on_every_architecture) {
  for (int number = 424; number <= 469; ++number) {
    EXPECT_EQ(syscall_name(Arch::x86_64, number), syscall_name(Arch::aarch64, number));
  }
}

TEST(Syscalls, agree_with_the_headers_of_the_build_host) {
  EXPECT_EQ(syscall_number(kHostArch, "read"), SYS_read);
  EXPECT_EQ(syscall_number(kHostArch, "execveat"), SYS_execveat);
  EXPECT_EQ(syscall_number(kHostArch, "newfstatat"), SYS_newfstatat);
  EXPECT_EQ(syscall_number(kHostArch, "seccomp"), SYS_seccomp);
  EXPECT_EQ(syscall_number(kHostArch, "clone3"), SYS_clone3);
  EXPECT_EQ(syscall_number(kHostArch, "open_by_handle_at"), SYS_open_by_handle_at);
  EXPECT_EQ(audit_arch(Arch::x86_64), static_cast<std::uint32_t>(AUDIT_ARCH_X86_64));
  EXPECT_EQ(audit_arch(Arch::aarch64), static_cast<std::uint32_t>(AUDIT_ARCH_AARCH64));
}

TEST(Syscalls, unknown_names_and_numbers_are_told_apart) {
  EXPECT_EQ(syscall_number(Arch::aarch64, "open"), std::nullopt);
  EXPECT_EQ(syscall_number(Arch::x86_64, ""), std::nullopt);
  EXPECT_EQ(syscall_number(Arch::x86_64, "zzz"), std::nullopt);
  EXPECT_TRUE(syscall_name(Arch::x86_64, -1).empty());
  EXPECT_TRUE(syscall_name(Arch::x86_64, 400).empty());
  EXPECT_TRUE(syscall_name(Arch::x86_64, 1 << 30).empty());
}

}  // namespace
}  // namespace pctx
