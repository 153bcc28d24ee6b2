#include "plan/filter.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "plan/filter_eval.h"
#ifdef PCTX_HAVE_LIBSECCOMP
#include <seccomp.h>
#endif

namespace pctx {
namespace {

constexpr std::uint32_t kAuditI386 = 0x40000003;

seccomp_data call_of(Arch arch, std::uint32_t number, std::array<std::uint64_t, 6> args = {}) {
  seccomp_data call{};
  call.nr = static_cast<int>(number);
  call.arch = audit_arch(arch);
  for (std::size_t i = 0; i < args.size(); ++i) call.args[i] = args[i];
  return call;
}

std::vector<sock_filter> compiled(const FilterSpec& spec) {
  auto program = compile_filter(spec);
  EXPECT_TRUE(program.has_value()) << (program ? "" : program.error().what);
  return program ? *std::move(program) : std::vector<sock_filter>{};
}

FilterSpec refusing(std::vector<Rule> rules) {
  return {Arch::x86_64, std::move(rules), Action::fail(EPERM), std::nullopt};
}

// Values around the places where a comparison can go wrong.
constexpr std::uint64_t kEdges[] = {0,           1,          39,          40,          41,          0x7fffffff,
                                    0x80000000,  0xffffffff, 0x100000000, 0x100000028, 0x100000029, 0x2800000028,
                                    0x280000000, 1ull << 63, ~0ull,       ~0ull - 1};

TEST(Filter, kills_other_architectures_before_looking_at_the_number) {
  const auto program = compiled(refusing({{0, Action::allow(), {}}}));
  auto call = call_of(Arch::x86_64, 0);
  EXPECT_EQ(evaluate(program, call), kAllow);
  for (const std::uint32_t arch : {kAuditI386, 0xc00000b7u, 0u, 0xc000003fu, 0x8000003eu}) {
    call.arch = arch;
    EXPECT_EQ(evaluate(program, call), kKill) << arch;
  }
}

TEST(Filter, kills_every_x32_number_even_if_all_is_allowed) {
  FilterSpec spec = refusing({});
  spec.fallback = Action::allow();
  const auto program = compiled(spec);
  for (std::uint32_t number = 0; number <= 600; ++number) {
    EXPECT_EQ(evaluate(program, call_of(Arch::x86_64, number)), kAllow);
    EXPECT_EQ(evaluate(program, call_of(Arch::x86_64, number | kX32Bit)), kKill);
    EXPECT_EQ(evaluate(program, call_of(Arch::x86_64, number | 0x80000000u)), kKill);
  }
  EXPECT_EQ(evaluate(program, call_of(Arch::x86_64, ~0u)), kKill);
}

TEST(Filter, every_operator_and_width_means_what_the_spec_says) {
  for (const Compare op :
       {Compare::eq, Compare::ne, Compare::lt, Compare::le, Compare::gt, Compare::ge, Compare::masked_eq}) {
    for (const Width width : {Width::full, Width::low32}) {
      for (const std::uint64_t value : kEdges) {
        for (const std::uint64_t mask : {~0ull, 0xffffffffull, 0x28ull, 0xffffffff00000000ull, 0ull}) {
          const FilterSpec spec = refusing({{9, Action::allow(), {{3, op, width, value, mask}}}});
          const auto program = compiled(spec);
          for (const std::uint64_t argument : kEdges) {
            const auto call = call_of(Arch::x86_64, 9, {0, 0, 0, argument});
            ASSERT_EQ(evaluate(program, call), decide(spec, call).encoded())
                << "op " << static_cast<int>(op) << " width " << static_cast<int>(width) << " value " << value
                << " mask " << mask << " argument " << argument;
          }
          if (op != Compare::masked_eq) break;
        }
      }
    }
  }
}

TEST(Filter, upper_bits_do_not_dodge_a_low32_test) {
  const FilterSpec spec =
      refusing({{16, Action::fail(EACCES), {{1, Compare::eq, Width::low32, 0x5412}}}, {16, Action::allow(), {}}});
  const auto program = compiled(spec);
  for (unsigned bit = 32; bit < 64; ++bit) {
    const std::uint64_t request = (1ull << bit) | 0x5412;
    EXPECT_EQ(evaluate(program, call_of(Arch::x86_64, 16, {0, request})), fails_with(EACCES)) << bit;
  }
  EXPECT_EQ(evaluate(program, call_of(Arch::x86_64, 16, {0, 0x5413})), kAllow);
}

TEST(Filter, all_tests_of_a_rule_must_hold_and_the_first_matching_rule_wins) {
  const ArgTest first{0, Compare::eq, Width::low32, 1};
  const ArgTest second{1, Compare::eq, Width::low32, 2};
  const auto program = compiled(refusing({{5, Action::fail(1), {first, second}},
                                          {5, Action::fail(2), {first}},
                                          {5, Action::fail(3), {}},
                                          {5, Action::allow(), {}}}));
  EXPECT_EQ(evaluate(program, call_of(Arch::x86_64, 5, {1, 2})), fails_with(1));
  EXPECT_EQ(evaluate(program, call_of(Arch::x86_64, 5, {1, 3})), fails_with(2));
  EXPECT_EQ(evaluate(program, call_of(Arch::x86_64, 5, {0, 2})), fails_with(3));
}

TEST(Filter, every_action_arrives_as_the_kernel_encodes_it) {
  const std::pair<Action, std::uint32_t> actions[] = {
      {Action::allow(), 0x7fff0000u},     {Action::fail(38), 0x00050026u},       {Action::kill_process(), 0x80000000u},
      {{ActionKind::kill_thread, 0}, 0u}, {{ActionKind::trap, 0}, 0x00030000u},  {{ActionKind::log, 0}, 0x7ffc0000u},
      {Action::notify(), 0x7fc00000u},    {{ActionKind::trace, 7}, 0x7ff00007u},
  };
  for (const auto& [action, encoded] : actions) {
    EXPECT_EQ(evaluate(compiled(refusing({{1, action, {}}})), call_of(Arch::x86_64, 1)), encoded);
  }
}

TEST(Filter, numbers_outside_the_table_get_their_own_answer) {
  for (const Arch arch : {Arch::x86_64, Arch::aarch64}) {
    const FilterSpec spec{arch, {}, Action::fail(EPERM), Action::fail(ENOSYS)};
    const auto program = compiled(spec);
    for (std::uint32_t number = 0; number <= 600; ++number) {
      const bool known = !syscall_name(arch, static_cast<int>(number)).empty();
      EXPECT_EQ(evaluate(program, call_of(arch, number)), fails_with(known ? EPERM : ENOSYS)) << number;
    }
  }
}

Rule random_rule(std::mt19937& random) {
  static constexpr Action kActions[] = {Action::allow(), Action::fail(1), Action::fail(97), Action::notify()};
  Rule rule{static_cast<int>(random() % 480), kActions[random() % 4], {}};
  for (auto n = random() % 4; n > 0; --n) {
    rule.tests.push_back({static_cast<std::uint8_t>(random() % 6), static_cast<Compare>(random() % 7),
                          static_cast<Width>(random() % 2), kEdges[random() % std::size(kEdges)],
                          kEdges[random() % std::size(kEdges)]});
  }
  return rule;
}

// Large random specs reach every kind of long jump; the meaning is given by decide(), which knows nothing of BPF.
TEST(Filter, program_and_spec_agree_on_random_rules) {
  std::mt19937 random(20251115);
  for (const int count : {1, 3, 30, 100, 300}) {
    for (int round = 0; round < 6; ++round) {
      FilterSpec spec{round % 2 ? Arch::x86_64 : Arch::aarch64, {}, Action::fail(EPERM), std::nullopt};
      if (round % 3 == 0) spec.unknown = Action::fail(ENOSYS);
      for (int i = 0; i < count; ++i) spec.rules.push_back(random_rule(random));
      const auto program = compiled(spec);
      for (std::uint32_t number = 0; number <= 600; ++number) {
        for (int i = 0; i < 10; ++i) {
          auto call = call_of(spec.arch, number);
          for (auto& argument : call.args) argument = kEdges[random() % std::size(kEdges)];
          ASSERT_EQ(evaluate(program, call), decide(spec, call).encoded()) << number << " of " << count << " rules";
        }
      }
    }
  }
}

TEST(Filter, same_rules_give_the_same_bytes) {
  std::mt19937 random(1);
  FilterSpec spec = refusing({});
  for (int i = 0; i < 50; ++i) spec.rules.push_back(random_rule(random));
  const auto first = compiled(spec);
  const auto second = compiled(spec);
  ASSERT_EQ(first.size(), second.size());
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(sock_filter)), 0);
}

TEST(Filter, runs_of_equal_answers_become_one_range) {
  FilterSpec spec = refusing({});
  for (int number = 0; number < 300; ++number) spec.rules.push_back({number, Action::allow(), {}});
  EXPECT_LE(compiled(spec).size(), 8u);
}

TEST(Filter, refuses_what_the_kernel_could_not_take) {
  EXPECT_FALSE(compile_filter(refusing({{-1, Action::allow(), {}}})));
  EXPECT_FALSE(compile_filter(refusing({{1 << 30, Action::allow(), {}}})));
  EXPECT_FALSE(compile_filter(refusing({{1, Action::allow(), {{6, Compare::eq, Width::full, 0}}}})));
  EXPECT_FALSE(compile_filter(refusing({{1, Action::fail(5000), {}}})));
  FilterSpec huge = refusing({});
  for (std::uint64_t i = 0; i < 3000; ++i) {
    huge.rules.push_back({static_cast<int>(i % 400), Action::allow(), {{0, Compare::eq, Width::full, i << 20}}});
  }
  const auto program = compile_filter(huge);
  ASSERT_FALSE(program);
  EXPECT_NE(program.error().what.find("4096"), std::string::npos);
}

#ifdef PCTX_HAVE_LIBSECCOMP
std::vector<sock_filter> exported(scmp_filter_ctx context) {
  const Fd file(memfd_create("filter", MFD_CLOEXEC));
  EXPECT_EQ(seccomp_export_bpf(context, file.get()), 0);
  std::vector<sock_filter> program(static_cast<std::size_t>(lseek(file.get(), 0, SEEK_END)) / sizeof(sock_filter));
  const std::size_t bytes = program.size() * sizeof(sock_filter);
  EXPECT_EQ(pread(file.get(), program.data(), bytes, 0), static_cast<ssize_t>(bytes));
  return program;
}

// libseccomp as a second opinion. Only tests whose merging its 2.5.4 does right: eq and masked_eq, one argument a rule.
TEST(Filter, agrees_with_libseccomp) {
  if (kHostArch != Arch::x86_64) GTEST_SKIP() << "written for x86_64";
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    FilterSpec spec = refusing({});
    scmp_filter_ctx context = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    ASSERT_NE(context, nullptr);
    ASSERT_EQ(seccomp_attr_set(context, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS), 0);
    for (int number = 0; number < 335; ++number) {
      const auto kind = random() % 4;
      if (kind == 0) continue;
      Rule rule{number, kind == 3 ? Action::fail(ENOSYS) : Action::allow(), {}};
      if (kind == 2) {
        const std::uint64_t value = random() % 64;
        const bool masked = random() % 2 != 0;
        const std::uint64_t mask = masked ? 0x7e020000 | value : ~0ull;
        rule.tests.push_back({static_cast<std::uint8_t>(random() % 6), masked ? Compare::masked_eq : Compare::eq,
                              Width::full, value, mask});
        const scmp_arg_cmp compare{rule.tests[0].index, masked ? SCMP_CMP_MASKED_EQ : SCMP_CMP_EQ,
                                   masked ? mask : value, masked ? value : 0};
        ASSERT_EQ(seccomp_rule_add_array(context, SCMP_ACT_ALLOW, number, 1, &compare), 0);
      } else {
        ASSERT_EQ(seccomp_rule_add(context, kind == 3 ? SCMP_ACT_ERRNO(ENOSYS) : SCMP_ACT_ALLOW, number, 0), 0);
      }
      spec.rules.push_back(rule);
    }
    const auto theirs = exported(context);
    seccomp_release(context);
    const auto ours = compiled(spec);
    for (std::uint32_t number = 0; number <= 600; ++number) {
      for (int i = 0; i < 20; ++i) {
        auto call = call_of(Arch::x86_64, number);
        for (auto& argument : call.args) argument = random() % 2 ? random() % 64 : kEdges[random() % std::size(kEdges)];
        ASSERT_EQ(evaluate(ours, call), evaluate(theirs, call)) << number;
      }
    }
    auto call = call_of(Arch::x86_64, 0);
    call.arch = kAuditI386;
    EXPECT_EQ(evaluate(theirs, call), kKill);
  }
}
#endif

// Installs the program; 0, or which expectation failed.
int probe_under(const sock_fprog& prog) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 1;
  if (syscall(SYS_ptrace, 99, 0, 0, 0) != -1 || errno == EPERM) return 2;  // control: refused for another reason
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) != 0) return 3;
  if (syscall(SYS_getppid) <= 0) return 4;
  if (syscall(SYS_ptrace, 99, 0, 0, 0) != -1 || errno != EPERM) return 5;
  if (syscall(SYS_getpriority, 0x700000002, 0) != -1 || errno != E2BIG) return 6;
  if (syscall(SYS_getpriority, 0, 0) < 0) return 7;
  if (syscall(4000) != -1 || errno != ENOSYS) return 8;
  return 0;
}

TEST(Filter, the_kernel_accepts_and_obeys_the_program) {
  const FilterSpec spec{kHostArch,
                        {{SYS_getppid, Action::allow(), {}},
                         {SYS_exit_group, Action::allow(), {}},
                         {SYS_getpriority, Action::fail(E2BIG), {{0, Compare::eq, Width::low32, 2}}},
                         {SYS_getpriority, Action::allow(), {}}},
                        Action::fail(EPERM),
                        Action::fail(ENOSYS)};
  auto program = compiled(spec);
  const sock_fprog prog{static_cast<unsigned short>(program.size()), program.data()};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  // Not _exit(): before a call that does not return the sanitizers do work of their own, which the filter refuses.
  if (child == 0) syscall(SYS_exit_group, probe_under(prog));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace pctx
