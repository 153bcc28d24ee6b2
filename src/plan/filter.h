// From rules about system calls to a seccomp program. Pure: same rules, same bytes; installing it is the launcher's
// work.
//
// The program checks the architecture first, then finds the call by a balanced search over its number, then looks at
// arguments where a rule asks for it. Calls that are allowed whatever their arguments never load an argument, so that
// Linux 5.11 and later prove them constant when the filter is installed and stop running it for them.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "sys/syscalls.h"

namespace pctx {

enum class ActionKind : std::uint8_t { allow, fail, kill_process, kill_thread, trap, log, notify, trace };

struct Action {
  ActionKind kind = ActionKind::kill_process;
  std::uint16_t data = 0;  // the errno of `fail`, the message of `trace`

  static constexpr Action allow() { return {ActionKind::allow, 0}; }
  static constexpr Action fail(int code) { return {ActionKind::fail, static_cast<std::uint16_t>(code)}; }
  static constexpr Action kill_process() { return {ActionKind::kill_process, 0}; }
  static constexpr Action notify() { return {ActionKind::notify, 0}; }

  // What the filter returns to the kernel (SECCOMP_RET_*).
  std::uint32_t encoded() const;
  bool permits() const { return kind == ActionKind::allow || kind == ActionKind::log; }
  bool operator==(const Action&) const = default;
};

enum class Compare : std::uint8_t { eq, ne, lt, le, gt, ge, masked_eq };

// The kernel takes most arguments as 32-bit integers and drops the upper half of the register. A 64-bit comparison of
// such an argument is dodged by setting a bit that nobody looks at, hence `low32`.
enum class Width : std::uint8_t { full, low32 };

struct ArgTest {
  std::uint8_t index = 0;  // 0..5
  Compare op = Compare::eq;
  Width width = Width::low32;
  std::uint64_t value = 0;
  std::uint64_t mask = ~std::uint64_t{0};  // masked_eq only: (argument & mask) == value

  bool operator==(const ArgTest&) const = default;
};

// All tests must hold. Several rules for one number are alternatives: the first that matches wins.
struct Rule {
  int number = -1;
  Action action;
  std::vector<ArgTest> tests;

  bool operator==(const Rule&) const = default;
};

// Two things are not for a spec to say: calls of another architecture and x32 calls always kill the process.
struct FilterSpec {
  Arch arch = kHostArch;
  std::vector<Rule> rules;
  Action fallback;                // calls without a matching rule
  std::optional<Action> unknown;  // numbers that the table does not know, where that differs from `fallback`
};

// The classic BPF program, ready for seccomp(2). Fails if a rule makes no sense or the program exceeds the kernel's
// 4096 instructions.
Result<std::vector<sock_filter>> compile_filter(const FilterSpec& spec);

// What the spec says about one call, without a program: the meaning that compile_filter must keep.
Action decide(const FilterSpec& spec, const seccomp_data& call);

}  // namespace pctx
