#include "plan/filter_eval.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>

namespace pctx {
namespace {

struct Machine {
  std::uint32_t a = 0;
  std::uint32_t x = 0;
  std::array<std::uint32_t, BPF_MEMWORDS> memory{};
};

std::optional<std::uint32_t> load_word(const seccomp_data& call, std::uint32_t offset) {
  if (offset % 4 != 0 || offset >= sizeof(seccomp_data)) return std::nullopt;
  std::uint32_t word = 0;
  std::memcpy(&word, reinterpret_cast<const std::byte*>(&call) + offset, sizeof(word));
  return word;
}

// Nothing when the kernel would have refused the instruction or stopped at it.
std::optional<std::uint32_t> arithmetic(std::uint16_t op, std::uint32_t a, std::uint32_t b) {
  switch (op) {
    case BPF_ADD:
      return a + b;
    case BPF_SUB:
      return a - b;
    case BPF_MUL:
      return a * b;
    case BPF_DIV:
      if (b == 0) return std::nullopt;
      return a / b;
    case BPF_AND:
      return a & b;
    case BPF_OR:
      return a | b;
    case BPF_XOR:
      return a ^ b;
    case BPF_LSH:
      if (b >= 32) return std::nullopt;
      return a << b;
    case BPF_RSH:
      if (b >= 32) return std::nullopt;
      return a >> b;
    case BPF_NEG:
      return 0u - a;
    default:
      return std::nullopt;
  }
}

std::optional<bool> condition(std::uint16_t op, std::uint32_t a, std::uint32_t b) {
  switch (op) {
    case BPF_JEQ:
      return a == b;
    case BPF_JGT:
      return a > b;
    case BPF_JGE:
      return a >= b;
    case BPF_JSET:
      return (a & b) != 0;
    default:
      return std::nullopt;
  }
}

// Loads, stores and register moves; false for what seccomp does not permit.
bool move_data(Machine& m, const sock_filter& instruction, const seccomp_data& call) {
  switch (instruction.code) {
    case BPF_LD | BPF_W | BPF_ABS: {
      const auto word = load_word(call, instruction.k);
      if (word) m.a = *word;
      return word.has_value();
    }
    case BPF_LD | BPF_W | BPF_LEN:
      m.a = sizeof(seccomp_data);
      return true;
    case BPF_LDX | BPF_W | BPF_LEN:
      m.x = sizeof(seccomp_data);
      return true;
    case BPF_LD | BPF_IMM:
      m.a = instruction.k;
      return true;
    case BPF_LDX | BPF_IMM:
      m.x = instruction.k;
      return true;
    case BPF_MISC | BPF_TAX:
      m.x = m.a;
      return true;
    case BPF_MISC | BPF_TXA:
      m.a = m.x;
      return true;
    default:
      break;
  }
  if (instruction.k >= BPF_MEMWORDS) return false;
  switch (instruction.code) {
    case BPF_LD | BPF_MEM:
      m.a = m.memory[instruction.k];
      return true;
    case BPF_LDX | BPF_MEM:
      m.x = m.memory[instruction.k];
      return true;
    case BPF_ST:
      m.memory[instruction.k] = m.a;
      return true;
    case BPF_STX:
      m.memory[instruction.k] = m.x;
      return true;
    default:
      return false;
  }
}

}  // namespace

Evaluation trace_evaluation(std::span<const sock_filter> program, const seccomp_data& call) {
  Machine m;
  Evaluation result;
  // Jumps only go forward, so that this ends.
  for (std::size_t pc = 0; pc < program.size(); ++pc) {
    const sock_filter& instruction = program[pc];
    const std::uint16_t code = instruction.code;
    ++result.steps;
    const std::uint32_t operand = BPF_SRC(code) == BPF_X ? m.x : instruction.k;
    switch (BPF_CLASS(code)) {
      case BPF_RET:
        if (code == (BPF_RET | BPF_K)) result.verdict = instruction.k;
        if (code == (BPF_RET | BPF_A)) result.verdict = m.a;
        return result;
      case BPF_JMP: {
        if (code == (BPF_JMP | BPF_JA)) {
          pc += instruction.k;
          break;
        }
        const auto taken = condition(BPF_OP(code), m.a, operand);
        if (!taken) return result;
        pc += *taken ? instruction.jt : instruction.jf;
        break;
      }
      case BPF_ALU: {
        const auto value = arithmetic(BPF_OP(code), m.a, operand);
        if (!value) return result;
        m.a = *value;
        break;
      }
      default:
        if (!move_data(m, instruction, call)) return result;
        if (code == (BPF_LD | BPF_W | BPF_ABS) && instruction.k >= offsetof(seccomp_data, instruction_pointer)) {
          result.reads_arguments = true;
        }
    }
  }
  return result;
}

std::uint32_t evaluate(std::span<const sock_filter> program, const seccomp_data& call) {
  return trace_evaluation(program, call).verdict;
}

}  // namespace pctx
