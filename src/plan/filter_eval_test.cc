#include "plan/filter_eval.h"

#include <gtest/gtest.h>

#include <vector>

namespace pctx {
namespace {

seccomp_data call_with(std::uint64_t argument) {
  seccomp_data call{};
  call.nr = 7;
  call.arch = 0xc000003e;
  call.args[0] = argument;
  return call;
}

std::uint32_t run(std::vector<sock_filter> program, std::uint64_t argument = 0) {
  return evaluate(program, call_with(argument));
}

TEST(FilterEval, loads_every_field_of_the_call) {
  const auto word_at = [](std::uint32_t offset) {
    return run({BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset), BPF_STMT(BPF_RET | BPF_A, 0)}, 0x1122334455667788);
  };
  EXPECT_EQ(word_at(0), 7u);
  EXPECT_EQ(word_at(4), 0xc000003eu);
  EXPECT_EQ(word_at(16), 0x55667788u);
  EXPECT_EQ(word_at(20), 0x11223344u);
}

TEST(FilterEval, follows_each_kind_of_jump) {
  const auto taken = [](std::uint16_t op, std::uint32_t a, std::uint32_t k) {
    return run({BPF_STMT(BPF_LD | BPF_IMM, a),
                {static_cast<std::uint16_t>(BPF_JMP | op | BPF_K), 0, 1, k},
                BPF_STMT(BPF_RET | BPF_K, 1),
                BPF_STMT(BPF_RET | BPF_K, 2)}) == 1;
  };
  EXPECT_TRUE(taken(BPF_JEQ, 5, 5));
  EXPECT_FALSE(taken(BPF_JEQ, 5, 6));
  EXPECT_TRUE(taken(BPF_JGT, 0xffffffff, 5));
  EXPECT_FALSE(taken(BPF_JGT, 5, 5));
  EXPECT_TRUE(taken(BPF_JGE, 5, 5));
  EXPECT_TRUE(taken(BPF_JSET, 6, 2));
  EXPECT_FALSE(taken(BPF_JSET, 6, 1));
}

TEST(FilterEval, computes_and_remembers) {
  EXPECT_EQ(run({BPF_STMT(BPF_LD | BPF_IMM, 12), BPF_STMT(BPF_ST, 3), BPF_STMT(BPF_LDX | BPF_MEM, 3),
                 BPF_STMT(BPF_ALU | BPF_MUL | BPF_X, 0), BPF_STMT(BPF_ALU | BPF_XOR | BPF_K, 1),
                 BPF_STMT(BPF_RET | BPF_A, 0)}),
            145u);
  EXPECT_EQ(run({BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_STMT(BPF_RET | BPF_A, 0)}), 64u);
}

TEST(FilterEval, kills_at_what_the_kernel_would_not_accept) {
  EXPECT_EQ(run({}), kKill);
  EXPECT_EQ(run({BPF_STMT(BPF_LD | BPF_IMM, 1)}), kKill) << "falls off the end";
  EXPECT_EQ(run({BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 64), BPF_STMT(BPF_RET | BPF_K, 1)}), kKill);
  EXPECT_EQ(run({BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 2), BPF_STMT(BPF_RET | BPF_K, 1)}), kKill) << "unaligned";
  EXPECT_EQ(run({BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0), BPF_STMT(BPF_RET | BPF_K, 1)}), kKill) << "byte load";
  EXPECT_EQ(run({BPF_STMT(BPF_LD | BPF_MEM, 16), BPF_STMT(BPF_RET | BPF_K, 1)}), kKill);
  EXPECT_EQ(run({BPF_STMT(BPF_ALU | BPF_DIV | BPF_X, 0), BPF_STMT(BPF_RET | BPF_K, 1)}), kKill) << "divides by zero";
  EXPECT_EQ(run({BPF_STMT(BPF_JMP | BPF_JA, 0xffffffff), BPF_STMT(BPF_RET | BPF_K, 1)}), kKill);
  EXPECT_EQ(run({BPF_STMT(BPF_RET | BPF_X, 1)}), kKill);
  EXPECT_EQ(run({BPF_STMT(0xffff, 1), BPF_STMT(BPF_RET | BPF_K, 1)}), kKill);
}

TEST(FilterEval, counts_steps_and_notices_argument_loads) {
  const std::vector<sock_filter> plain{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_STMT(BPF_RET | BPF_K, 1)};
  EXPECT_EQ(trace_evaluation(plain, call_with(0)).steps, 2u);
  EXPECT_FALSE(trace_evaluation(plain, call_with(0)).reads_arguments);
  const std::vector<sock_filter> reads{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 16), BPF_STMT(BPF_RET | BPF_K, 1)};
  EXPECT_TRUE(trace_evaluation(reads, call_with(0)).reads_arguments);
}

}  // namespace
}  // namespace pctx
