// For tests of the filter.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/filter_eval.h"
#include "plan/syscall_policy.h"

namespace pctx {

using Args = std::array<std::uint64_t, 6>;
using Values = std::initializer_list<std::uint64_t>;

inline constexpr std::uint64_t kUpper = 0xdead'beef'0000'0000;  // what a guest adds to dodge a 64-bit comparison
inline constexpr FilterOptions kRelaxed{
    .memory_is_accounted = true, .pins_cpus = false, .semaphores_are_charged = true};

// Asks a filter what it answers to a call, without a kernel.
class FilteredGuest {
 public:
  explicit FilteredGuest(const FilterOptions& options = kRelaxed, Arch arch = Arch::x86_64) : arch_(arch) {
    auto program = compile_filter(default_filter(arch, options));
    EXPECT_TRUE(program.has_value());
    if (program) program_ = *std::move(program);
  }
  seccomp_data call(std::string_view name, const Args& args = {}) const {
    seccomp_data call{};
    const auto number = syscall_number(arch_, name);
    EXPECT_TRUE(number.has_value()) << name;
    call.nr = number.value_or(-1);
    call.arch = audit_arch(arch_);
    for (std::size_t i = 0; i < args.size(); ++i) call.args[i] = args[i];
    return call;
  }
  std::uint32_t answer(std::string_view name, const Args& args = {}) const {
    return evaluate(program_, call(name, args));
  }
  std::span<const sock_filter> program() const { return program_; }

 private:
  Arch arch_;
  std::vector<sock_filter> program_;
};

}  // namespace pctx
