#include "plan/filter.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace pctx {
namespace {

constexpr int kNumberLimit = 4096;      // far above any real number; keeps the dense table below small
constexpr std::size_t kReach = 255;     // cBPF stores the distance of a conditional jump in 8 bits
constexpr std::uint32_t kNoWord = ~0u;  // "the accumulator holds nothing of interest"

constexpr std::uint32_t low_word(unsigned index) {
  return static_cast<std::uint32_t>(offsetof(seccomp_data, args) + index * sizeof(std::uint64_t));
}
constexpr std::uint32_t high_word(unsigned index) { return low_word(index) + 4; }
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the offsets of the two halves assume it");

// Where a jump goes: an instruction that exists already, or a verdict, which is made wherever it is needed.
struct Target {
  enum class Kind : std::uint8_t { instruction, verdict } kind;
  std::uint32_t value;  // position in emission order, or the value to return

  static Target to(std::size_t position) { return {Kind::instruction, static_cast<std::uint32_t>(position)}; }
  static Target verdict(std::uint32_t value) { return {Kind::verdict, value}; }
  bool operator==(const Target&) const = default;
};

// Writes the program from its end to its beginning: classic BPF only jumps forward, so that every target exists, and
// its distance is known, when the jump to it is written. No labels, no second pass.
class Emitter {
 public:
  explicit Emitter(std::size_t expected) { code_.reserve(expected); }

  std::size_t size() const { return code_.size(); }

  Target branch(std::uint16_t op, std::uint32_t k, Target yes, Target no) {
    if (yes == no) return yes;
    const std::size_t first = reachable(yes);
    const std::size_t second = reachable(no);
    const std::size_t here = code_.size();
    return push({static_cast<std::uint16_t>(BPF_JMP | op | BPF_K), static_cast<std::uint8_t>(here - first - 1),
                 static_cast<std::uint8_t>(here - second - 1), k});
  }

  // The next two only make sense directly before the instruction that uses the accumulator.
  Target load(std::uint32_t offset, Target next) {
    fall_through_to(next);
    return push({BPF_LD | BPF_W | BPF_ABS, 0, 0, offset});
  }
  Target mask(std::uint32_t bits, Target next) {
    if (bits == ~0u) return next;
    fall_through_to(next);
    return push({BPF_ALU | BPF_AND | BPF_K, 0, 0, bits});
  }

  std::vector<sock_filter> take() && {
    std::reverse(code_.begin(), code_.end());
    return std::move(code_);
  }

 private:
  struct Return {
    std::uint32_t value;
    std::size_t position;
  };

  Target push(sock_filter instruction) {
    code_.push_back(instruction);
    return Target::to(code_.size() - 1);
  }

  // A position that the instruction after next can still reach. A copy of a return costs no more than the jump to it.
  std::size_t reachable(Target target) {
    if (target.kind == Target::Kind::instruction) {
      if (code_.size() - target.value < kReach) return target.value;
      push({BPF_JMP | BPF_JA, 0, 0, static_cast<std::uint32_t>(code_.size() - target.value - 1)});
      return code_.size() - 1;
    }
    for (Return& known : returns_) {
      if (known.value != target.value) continue;
      if (code_.size() - known.position >= kReach) known.position = push_return(target.value);
      return known.position;
    }
    const std::size_t position = push_return(target.value);
    returns_.push_back({target.value, position});
    return position;
  }

  std::size_t push_return(std::uint32_t value) {
    push({BPF_RET | BPF_K, 0, 0, value});
    return code_.size() - 1;
  }

  void fall_through_to(Target next) {
    if (next.kind == Target::Kind::verdict) {
      push_return(next.value);
    } else if (next.value + 1 != code_.size()) {
      push({BPF_JMP | BPF_JA, 0, 0, static_cast<std::uint32_t>(code_.size() - next.value - 1)});
    }
  }

  std::vector<sock_filter> code_;
  std::vector<Return> returns_;
};

// A piece of argument-testing code, and which word it loads first: who already holds that word may enter one later.
struct Block {
  Target entry;
  std::uint32_t first_word = kNoWord;

  Target enter_holding(std::uint32_t word) const {
    return word != kNoWord && word == first_word ? Target::to(entry.value - 1) : entry;
  }
};

// ne, lt and le are eq, ge and gt with the outcomes exchanged.
bool is_negated(Compare op) { return op == Compare::ne || op == Compare::lt || op == Compare::le; }

std::uint16_t jump_for(Compare op) {
  switch (op) {
    case Compare::lt:
    case Compare::ge:
      return BPF_JGE;
    case Compare::le:
    case Compare::gt:
      return BPF_JGT;
    default:
      return BPF_JEQ;
  }
}

Block emit_test(Emitter& out, const ArgTest& test, Target yes, Target no) {
  if (is_negated(test.op)) std::swap(yes, no);
  const std::uint16_t jump = jump_for(test.op);
  const bool masked = test.op == Compare::masked_eq;
  const auto low = static_cast<std::uint32_t>(test.value);
  const auto high = static_cast<std::uint32_t>(test.value >> 32);
  const auto mask_low = masked ? static_cast<std::uint32_t>(test.mask) : ~0u;
  const auto mask_high = masked ? static_cast<std::uint32_t>(test.mask >> 32) : ~0u;

  Target entry = out.branch(jump, low, yes, no);
  const std::uint32_t word = low_word(test.index);
  entry = out.load(word, out.mask(mask_low, entry));
  if (test.width == Width::low32 || (mask_high == 0 && high == 0)) return {entry, word};

  Target upper = out.branch(BPF_JEQ, high, entry, no);  // equal upper halves: the lower ones decide
  if (jump != BPF_JEQ) upper = out.branch(BPF_JGT, high, yes, upper);
  return {out.load(high_word(test.index), out.mask(mask_high, upper)), high_word(test.index)};
}

// Which word the accumulator still holds, unmasked, when the rule does not match; only sure for a single plain test.
std::uint32_t word_left_by(const Rule& rule) {
  if (rule.tests.size() != 1) return kNoWord;
  const ArgTest& test = rule.tests.front();
  const bool unmasked = test.op != Compare::masked_eq || static_cast<std::uint32_t>(test.mask) == ~0u;
  return test.width == Width::low32 && unmasked ? low_word(test.index) : kNoWord;
}

Block emit_rule(Emitter& out, const Rule& rule, const Block& otherwise) {
  const Target no = otherwise.enter_holding(word_left_by(rule));
  Block block{Target::verdict(rule.action.encoded())};
  for (std::size_t i = rule.tests.size(); i-- > 0;) block = emit_test(out, rule.tests[i], block.entry, no);
  return block;
}

constexpr const char* kOutOfRange = "correct that rule";

Result<void> check_rule(const Rule& rule) {
  if (rule.number < 0 || rule.number >= kNumberLimit) {
    return usage_error(fmt::format("a filter rule names system call number {}, which cannot exist", rule.number),
                       kOutOfRange);
  }
  if (rule.action.kind == ActionKind::fail && rule.action.data > 4095) {
    return usage_error(fmt::format("a filter rule answers with errno {}; the kernel knows 0 to 4095", rule.action.data),
                       kOutOfRange);
  }
  for (const ArgTest& test : rule.tests) {
    if (test.index > 5) {
      return usage_error(fmt::format("a filter rule tests argument {}; a system call has 0 to 5", test.index),
                         kOutOfRange);
    }
  }
  return {};
}

// All numbers from `first` up to the next segment's have the same answer.
struct Segment {
  std::uint32_t first;
  std::uint32_t verdict;
  std::int32_t chain;  // first of the number's rules when arguments matter, else -1

  bool same_answer(const Segment& other) const { return chain < 0 && other.chain < 0 && verdict == other.verdict; }
};

class Compiler {
 public:
  explicit Compiler(const FilterSpec& spec) : spec_(spec), out_(2 * spec.rules.size() + 64) {}

  Result<std::vector<sock_filter>> run() {
    PCTX_TRY(chain_rules());
    make_segments();
    const std::uint32_t kill = Action::kill_process().encoded();
    const Target search = emit_search(0, segments_.size());
    const Target by_number = out_.load(offsetof(seccomp_data, nr), search);
    const Target by_arch = out_.branch(BPF_JEQ, audit_arch(spec_.arch), by_number, Target::verdict(kill));
    out_.load(offsetof(seccomp_data, arch), by_arch);
    if (out_.size() > BPF_MAXINSNS) {
      return usage_error(
          fmt::format("the syscall filter needs {} instructions; the kernel takes {}", out_.size(), BPF_MAXINSNS),
          "use fewer argument conditions");
    }
    return std::move(out_).take();
  }

 private:
  // Links the rules of each number in their order; what follows an unconditional rule can never match.
  Result<void> chain_rules() {
    std::size_t limit = static_cast<std::size_t>(syscall_limit(spec_.arch));
    for (const Rule& rule : spec_.rules) {
      PCTX_TRY(check_rule(rule));
      limit = std::max(limit, static_cast<std::size_t>(rule.number) + 1);
    }
    first_.assign(limit, -1);
    next_.assign(spec_.rules.size(), -1);
    std::vector<std::int32_t> last(limit, -1);
    for (std::size_t i = 0; i < spec_.rules.size(); ++i) {
      const auto number = static_cast<std::size_t>(spec_.rules[i].number);
      const std::int32_t previous = std::exchange(last[number], static_cast<std::int32_t>(i));
      if (previous < 0) {
        first_[number] = static_cast<std::int32_t>(i);
      } else if (spec_.rules[static_cast<std::size_t>(previous)].tests.empty()) {
        last[number] = previous;
      } else {
        next_[static_cast<std::size_t>(previous)] = static_cast<std::int32_t>(i);
      }
    }
    return {};
  }

  std::uint32_t unmatched(std::size_t number) const {
    const bool known = !spec_.unknown || !syscall_name(spec_.arch, static_cast<int>(number)).empty();
    return (known ? spec_.fallback : *spec_.unknown).encoded();
  }

  void make_segments() {
    segments_.reserve(first_.size() / 2);
    for (std::size_t number = 0; number < first_.size(); ++number) {
      Segment segment{static_cast<std::uint32_t>(number), 0, first_[number]};
      if (segment.chain < 0) {
        segment.verdict = unmatched(number);
      } else if (const Rule& rule = spec_.rules[static_cast<std::size_t>(segment.chain)]; rule.tests.empty()) {
        segment = {segment.first, rule.action.encoded(), -1};
      }
      add(segment);
    }
    add({static_cast<std::uint32_t>(first_.size()), spec_.unknown.value_or(spec_.fallback).encoded(), -1});
    // Everything from the bit upwards, not just numbers with known x32 calls: the search ends here at no extra cost.
    if (spec_.arch == Arch::x86_64) add({kX32Bit, Action::kill_process().encoded(), -1});
  }

  void add(const Segment& segment) {
    if (segments_.empty() || !segments_.back().same_answer(segment)) segments_.push_back(segment);
  }

  Target emit_leaf(const Segment& segment) {
    if (segment.chain < 0) return Target::verdict(segment.verdict);
    std::vector<const Rule*> rules;
    for (std::int32_t i = segment.chain; i >= 0; i = next_[static_cast<std::size_t>(i)]) {
      rules.push_back(&spec_.rules[static_cast<std::size_t>(i)]);
    }
    Block block{Target::verdict(unmatched(segment.first))};
    for (std::size_t i = rules.size(); i-- > 0;) block = emit_rule(out_, *rules[i], block);
    return block.entry;
  }

  Target emit_search(std::size_t begin, std::size_t end) {
    if (end - begin == 1) return emit_leaf(segments_[begin]);
    if (end - begin == 3 && segments_[begin].same_answer(segments_[begin + 2]) &&
        segments_[begin + 1].first + 1 == segments_[begin + 2].first) {
      // One odd number in a run: a single test for equality instead of two comparisons.
      const Target odd = emit_leaf(segments_[begin + 1]);
      return out_.branch(BPF_JEQ, segments_[begin + 1].first, odd, emit_leaf(segments_[begin]));
    }
    const std::size_t middle = begin + (end - begin) / 2;
    const Target upper = emit_search(middle, end);
    const Target lower = emit_search(begin, middle);
    return out_.branch(BPF_JGE, segments_[middle].first, upper, lower);
  }

  const FilterSpec& spec_;
  std::vector<std::int32_t> first_;  // by number: its first rule
  std::vector<std::int32_t> next_;   // by rule: the next one of the same number
  std::vector<Segment> segments_;
  Emitter out_;
};

bool holds(const ArgTest& test, std::uint64_t argument) {
  std::uint64_t value = test.value;
  std::uint64_t mask = test.mask;
  if (test.width == Width::low32) {
    argument = static_cast<std::uint32_t>(argument);
    value = static_cast<std::uint32_t>(value);
    mask = static_cast<std::uint32_t>(mask);
  }
  switch (test.op) {
    case Compare::eq:
      return argument == value;
    case Compare::ne:
      return argument != value;
    case Compare::lt:
      return argument < value;
    case Compare::le:
      return argument <= value;
    case Compare::gt:
      return argument > value;
    case Compare::ge:
      return argument >= value;
    case Compare::masked_eq:
      return (argument & mask) == value;
  }
  return false;
}

}  // namespace

std::uint32_t Action::encoded() const {
  switch (kind) {
    case ActionKind::allow:
      return SECCOMP_RET_ALLOW;
    case ActionKind::fail:
      return SECCOMP_RET_ERRNO | data;
    case ActionKind::kill_process:
      return SECCOMP_RET_KILL_PROCESS;
    case ActionKind::kill_thread:
      return SECCOMP_RET_KILL_THREAD;
    case ActionKind::trap:
      return SECCOMP_RET_TRAP;
    case ActionKind::log:
      return SECCOMP_RET_LOG;
    case ActionKind::notify:
      return SECCOMP_RET_USER_NOTIF;
    case ActionKind::trace:
      return SECCOMP_RET_TRACE | data;
  }
  return SECCOMP_RET_KILL_PROCESS;
}

Result<std::vector<sock_filter>> compile_filter(const FilterSpec& spec) { return Compiler(spec).run(); }

Action decide(const FilterSpec& spec, const seccomp_data& call) {
  if (call.arch != audit_arch(spec.arch)) return Action::kill_process();
  const auto number = static_cast<std::uint32_t>(call.nr);
  if (spec.arch == Arch::x86_64 && number >= kX32Bit) return Action::kill_process();
  for (const Rule& rule : spec.rules) {
    if (rule.number != call.nr) continue;
    const bool all = std::all_of(rule.tests.begin(), rule.tests.end(),
                                 [&](const ArgTest& t) { return holds(t, call.args[t.index]); });
    if (all) return rule.action;
  }
  if (spec.unknown && syscall_name(spec.arch, call.nr).empty()) return *spec.unknown;
  return spec.fallback;
}

}  // namespace pctx
