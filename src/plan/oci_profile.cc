#include "plan/oci_profile.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/strict_json.h"
#include "plan/syscall_policy.h"

namespace pctx {
namespace {

// A value and where it stands, so that every complaint can say so.
struct Node {
  const Json& value;
  std::string place;

  Node at(const char* key) const { return {value.at(key), place.empty() ? key : place + "." + key}; }
  Node at(std::size_t index) const { return {value.at(index), fmt::format("{}[{}]", place, index)}; }
  // null counts as absent: Go writes empty lists that way.
  bool has(const char* key) const {
    const auto it = value.find(key);
    return it != value.end() && !it->is_null();
  }
};

// Text of the profile inside a message: quoted, escaped, bounded.
std::string shown(std::string_view text) {
  const std::string cut(text.substr(0, 40));
  return Json(cut).dump(-1, ' ', true, Json::error_handler_t::replace);
}

Error wrong_at(const Node& node, std::string_view what,
               std::string hint = "profiles of Docker and Podman show the form") {
  return usage_error(fmt::format("{} {}", node.place.empty() ? "the document" : node.place, what), std::move(hint));
}

// "the actions are A, B, C" out of a table whose entries have a `text`.
template <class Table>
std::string the_known(std::string_view things, const Table& table) {
  std::string line = fmt::format("the {} are", things);
  const char* before = " ";
  for (const auto& entry : table) {
    line += before;
    line += entry.text;
    before = ", ";
  }
  return line;
}

Result<void> check_keys(const Node& node, std::initializer_list<std::string_view> known) {
  if (!node.value.is_object()) return wrong_at(node, "is not an object");
  for (const auto& [key, value] : node.value.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return wrong_at(node, fmt::format("has the unknown key {}", shown(key)),
                      fmt::format("the keys here are {}", fmt::join(known, ", ")));
    }
  }
  return {};
}

Result<std::string> text_of(const Node& node) {
  if (!node.value.is_string()) return wrong_at(node, "is not a string");
  return node.value.get<std::string>();
}

Result<std::uint64_t> number_of(const Node& node, std::uint64_t most) {
  if (!node.value.is_number_unsigned()) return wrong_at(node, "is not a whole number from 0 to 2^64-1");
  const auto number = node.value.get<std::uint64_t>();
  if (number > most)
    return wrong_at(node, fmt::format("is {}; the most is {}", number, most), "write a smaller number");
  return number;
}

Result<std::vector<std::string>> texts_of(const Node& node) {
  if (!node.value.is_array()) return wrong_at(node, "is not a list");
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < node.value.size(); ++i) texts.push_back(PCTX_TRY(text_of(node.at(i))));
  return texts;
}

Result<ActionKind> action_of(const Node& node) {
  struct Name {
    std::string_view text;
    ActionKind kind;
  };
  static constexpr Name kNames[] = {
      {"SCMP_ACT_ALLOW", ActionKind::allow},      {"SCMP_ACT_ERRNO", ActionKind::fail},
      {"SCMP_ACT_KILL", ActionKind::kill_thread}, {"SCMP_ACT_KILL_THREAD", ActionKind::kill_thread},
      {"SCMP_ACT_TRAP", ActionKind::trap},        {"SCMP_ACT_KILL_PROCESS", ActionKind::kill_process},
      {"SCMP_ACT_LOG", ActionKind::log},          {"SCMP_ACT_TRACE", ActionKind::trace},
  };
  const std::string text = PCTX_TRY(text_of(node));
  if (text == "SCMP_ACT_NOTIFY")
    return wrong_at(node, "is SCMP_ACT_NOTIFY; a box has no agent of the profile's to ask",
                    "write SCMP_ACT_ERRNO: the report names what was refused");
  for (const Name& name : kNames) {
    if (name.text == text) return name.kind;
  }
  return wrong_at(node, fmt::format("is the unknown action {}", shown(text)), the_known("actions", kNames));
}

// Podman writes the name beside the number.
Result<std::uint16_t> errno_by_name(const Node& node) {
  const std::string text = PCTX_TRY(text_of(node));
  for (std::uint16_t code = 1; code < 256; ++code) {
    const char* name = strerrorname_np(code);
    if (name != nullptr && text == name) return code;
  }
  return wrong_at(node, fmt::format("is the unknown error name {}", shown(text)), "write one such as EPERM");
}

Result<Action> read_action(const Node& node, const char* action_key, const char* number_key, const char* name_key) {
  if (!node.has(action_key))
    return wrong_at(node, fmt::format("has no {}", action_key), "add it, for example SCMP_ACT_ERRNO");
  const ActionKind kind = PCTX_TRY(action_of(node.at(action_key)));
  std::optional<std::uint16_t> code;
  if (node.has(number_key)) code = static_cast<std::uint16_t>(PCTX_TRY(number_of(node.at(number_key), 4095)));
  if (node.has(name_key) && !(node.at(name_key).value == "")) {
    const std::uint16_t named = PCTX_TRY(errno_by_name(node.at(name_key)));
    if (code && *code != named)
      return wrong_at(node.at(name_key), fmt::format("contradicts {}", number_key), "leave one of them out");
    code = named;
  }
  if (kind == ActionKind::trace) return Action::fail(ENOSYS);
  if (kind == ActionKind::fail) return Action::fail(code.value_or(EPERM));
  if (code)
    return wrong_at(node, fmt::format("gives an error number, but {} is not SCMP_ACT_ERRNO", action_key),
                    "leave the number out");
  return Action{kind, 0};
}

// Of the two readings of a value that fits 32 bits, the one that matches less often for a permission and more often for
// a refusal: see the header.
Width stricter_width(Compare op, std::uint64_t value, bool permission) {
  if (value > UINT32_MAX) return Width::full;
  const bool full_matches_less =
      op == Compare::eq || op == Compare::lt || op == Compare::le || op == Compare::masked_eq;
  return full_matches_less == permission ? Width::full : Width::low32;
}

Result<Compare> compare_of(const Node& node) {
  struct Name {
    std::string_view text;
    Compare op;
  };
  static constexpr Name kNames[] = {
      {"SCMP_CMP_EQ", Compare::eq},
      {"SCMP_CMP_NE", Compare::ne},
      {"SCMP_CMP_LT", Compare::lt},
      {"SCMP_CMP_LE", Compare::le},
      {"SCMP_CMP_GT", Compare::gt},
      {"SCMP_CMP_GE", Compare::ge},
      {"SCMP_CMP_MASKED_EQ", Compare::masked_eq},
  };
  const std::string text = PCTX_TRY(text_of(node));
  for (const Name& name : kNames) {
    if (name.text == text) return name.op;
  }
  return wrong_at(node, fmt::format("is the unknown operator {}", shown(text)), the_known("operators", kNames));
}

Result<ArgTest> read_test(const Node& node, bool permission) {
  PCTX_TRY(check_keys(node, {"index", "value", "valueTwo", "op"}));
  for (const char* key : {"index", "value", "op"}) {
    if (!node.has(key)) return wrong_at(node, fmt::format("has no {}", key), "a test has index, value and op");
  }
  ArgTest test;
  test.index = static_cast<std::uint8_t>(PCTX_TRY(number_of(node.at("index"), 5)));
  test.op = PCTX_TRY(compare_of(node.at("op")));
  test.value = PCTX_TRY(number_of(node.at("value"), UINT64_MAX));
  std::uint64_t second = 0;
  if (node.has("valueTwo")) second = PCTX_TRY(number_of(node.at("valueTwo"), UINT64_MAX));
  if (test.op == Compare::masked_eq) {  // the format puts the mask first
    test.mask = test.value;
    test.value = second;
  }
  test.width = stricter_width(test.op, test.value, permission);
  return test;
}

Result<std::vector<ArgTest>> read_tests(const Node& node, bool permission) {
  std::vector<ArgTest> tests;
  if (!node.value.is_array()) return wrong_at(node, "is not a list");
  for (std::size_t i = 0; i < node.value.size(); ++i) {
    const ArgTest test = PCTX_TRY(read_test(node.at(i), permission));
    for (const ArgTest& earlier : tests) {
      if (earlier.index == test.index) {
        return wrong_at(node.at(i), fmt::format("tests argument {} a second time", test.index),
                        "write two rules instead");
      }
    }
    tests.push_back(test);
  }
  return tests;
}

Result<std::pair<unsigned, unsigned>> read_kernel(const Node& node) {
  const std::string text = PCTX_TRY(text_of(node));
  std::pair<unsigned, unsigned> kernel;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, kernel.first);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == '.') {
    const auto second = std::from_chars(first.ptr + 1, end, kernel.second);
    if (second.ec == std::errc() && second.ptr == end) return kernel;
  }
  return wrong_at(node, fmt::format("is {}, not a kernel version such as \"4.8\"", shown(text)));
}

// What `includes` or `excludes` says about this host and a guest without capabilities.
struct Filters {
  bool lists_arches = false, arch_matches = false;
  bool lists_caps = false;
  std::optional<bool> kernel_is_new;
};

Result<Filters> read_filters(const Node& node, const OciProfileOptions& options) {
  PCTX_TRY(check_keys(node, {"caps", "arches", "minKernel"}));
  Filters filters;
  if (node.has("caps")) filters.lists_caps = !PCTX_TRY(texts_of(node.at("caps"))).empty();
  if (node.has("arches")) {
    const auto arches = PCTX_TRY(texts_of(node.at("arches")));
    filters.lists_arches = !arches.empty();
    const std::string_view host = kHostArch == Arch::x86_64 ? "amd64" : "arm64";
    filters.arch_matches = std::find(arches.begin(), arches.end(), host) != arches.end();
  }
  if (node.has("minKernel") && !(node.at("minKernel").value == "")) {
    filters.kernel_is_new = options.kernel >= PCTX_TRY(read_kernel(node.at("minKernel")));
  }
  return filters;
}

Result<bool> applies(const Node& entry, const OciProfileOptions& options) {
  bool result = true;
  if (entry.has("includes")) {
    const Filters filters = PCTX_TRY(read_filters(entry.at("includes"), options));
    if (filters.lists_caps || (filters.lists_arches && !filters.arch_matches)) result = false;
    if (!filters.kernel_is_new.value_or(true)) result = false;
  }
  if (entry.has("excludes")) {
    const Filters filters = PCTX_TRY(read_filters(entry.at("excludes"), options));
    if (filters.arch_matches || filters.kernel_is_new.value_or(false)) result = false;
  }
  return result;
}

// A call of another machine that we know is no slip: nobody can make it here.
bool is_known(std::string_view name) {
  return syscall_number(Arch::x86_64, name) || syscall_number(Arch::aarch64, name);
}

Result<void> read_entry(const Node& entry, const OciProfileOptions& options, OciProfile& profile) {
  PCTX_TRY(
      check_keys(entry, {"name", "names", "action", "errnoRet", "errno", "args", "comment", "includes", "excludes"}));
  if (entry.has("comment")) PCTX_TRY(text_of(entry.at("comment")));
  std::vector<std::string> names;
  if (entry.has("names")) names = PCTX_TRY(texts_of(entry.at("names")));
  if (entry.has("name")) {
    if (entry.has("names")) return wrong_at(entry, "has both name and names", "leave one of them out");
    names.push_back(PCTX_TRY(text_of(entry.at("name"))));
  }
  if (names.empty()) return wrong_at(entry, "names no system call", "add names, or leave the entry out");
  const Action action = PCTX_TRY(read_action(entry, "action", "errnoRet", "errno"));
  std::vector<ArgTest> tests;
  if (entry.has("args")) tests = PCTX_TRY(read_tests(entry.at("args"), action.permits()));
  // Everything has been checked by now, also in entries for other machines: a profile is right or wrong everywhere.
  if (!PCTX_TRY(applies(entry, options))) return {};
  for (const std::string& name : names) {
    if (const auto number = syscall_number(kHostArch, name)) profile.filter.rules.push_back({*number, action, tests});
    if (is_known(name) || action.permits() || !profile.filter.fallback.permits()) continue;
    std::vector<std::string>& ignored = profile.ignored;
    if (std::find(ignored.begin(), ignored.end(), shown(name)) == ignored.end()) ignored.push_back(shown(name));
  }
  return {};
}

Result<bool> lists_host_architecture(const Node& names) {
  static constexpr std::string_view kKnown[] = {
      "SCMP_ARCH_NATIVE",      "SCMP_ARCH_X86",         "SCMP_ARCH_X86_64", "SCMP_ARCH_X32",       "SCMP_ARCH_ARM",
      "SCMP_ARCH_AARCH64",     "SCMP_ARCH_MIPS",        "SCMP_ARCH_MIPS64", "SCMP_ARCH_MIPS64N32", "SCMP_ARCH_MIPSEL",
      "SCMP_ARCH_MIPSEL64",    "SCMP_ARCH_MIPSEL64N32", "SCMP_ARCH_PPC",    "SCMP_ARCH_PPC64",     "SCMP_ARCH_PPC64LE",
      "SCMP_ARCH_S390",        "SCMP_ARCH_S390X",       "SCMP_ARCH_PARISC", "SCMP_ARCH_PARISC64",  "SCMP_ARCH_RISCV64",
      "SCMP_ARCH_LOONGARCH64", "SCMP_ARCH_M68K",        "SCMP_ARCH_SH",     "SCMP_ARCH_SHEB",
  };
  const std::string_view host = kHostArch == Arch::x86_64 ? "SCMP_ARCH_X86_64" : "SCMP_ARCH_AARCH64";
  bool found = false;
  const auto texts = PCTX_TRY(texts_of(names));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (std::find(std::begin(kKnown), std::end(kKnown), texts[i]) == std::end(kKnown)) {
      return wrong_at(names.at(i), fmt::format("is the unknown architecture {}", shown(texts[i])),
                      fmt::format("write {}, which this machine is", host));
    }
    if (texts[i] == host || texts[i] == "SCMP_ARCH_NATIVE") found = true;
  }
  return found;
}

Result<void> check_architectures(const Node& root) {
  bool listed = false, found = false;
  if (root.has("architectures")) {
    const Node list = root.at("architectures");
    found = PCTX_TRY(lists_host_architecture(list));
    listed = !list.value.empty();
  }
  if (root.has("archMap")) {
    const Node map = root.at("archMap");
    if (listed) return wrong_at(root, "has both architectures and archMap", "leave one of them out");
    if (!map.value.is_array()) return wrong_at(map, "is not a list");
    listed = !map.value.empty();
    for (std::size_t i = 0; i < map.value.size(); ++i) {
      const Node item = map.at(i);
      PCTX_TRY(check_keys(item, {"architecture", "subArchitectures"}));
      if (!item.has("architecture")) return wrong_at(item, "has no architecture", "add it, or leave the entry out");
      const Json single = Json::array({item.at("architecture").value});
      found |= PCTX_TRY(lists_host_architecture({single, item.place + ".architecture"}));
      if (item.has("subArchitectures")) PCTX_TRY(lists_host_architecture(item.at("subArchitectures")));
    }
  }
  if (listed && !found)
    return wrong_at(root, fmt::format("is not made for {}, which this machine is", arch_name(kHostArch)),
                    "add it to architectures, or leave that key out");
  return {};
}

Result<void> check_flags(const Node& flags) {
  const auto texts = PCTX_TRY(texts_of(flags));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i] != "SECCOMP_FILTER_FLAG_TSYNC" && texts[i] != "SECCOMP_FILTER_FLAG_LOG" &&
        texts[i] != "SECCOMP_FILTER_FLAG_SPEC_ALLOW" && texts[i] != "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV") {
      return wrong_at(flags.at(i), fmt::format("is the unknown flag {}", shown(texts[i])), "leave it out");
    }
  }
  return {};
}

int leniency(const Rule& rule) {
  switch (rule.action.kind) {
    case ActionKind::kill_process:
      return 0;
    case ActionKind::kill_thread:
      return 1;
    case ActionKind::trap:
      return 2;
    case ActionKind::fail:
    case ActionKind::notify:
      return 3;
    case ActionKind::trace:
      return 4;
    case ActionKind::log:
      return 5;
    case ActionKind::allow:
      return 6;
  }
  return 0;
}

}  // namespace

Result<OciProfile> read_oci_profile(std::string_view text, const OciProfileOptions& options) {
  const Json document = PCTX_TRY(parse_strict_json<Json>(text, kMaxProfileBytes));
  const Node root{document, ""};
  PCTX_TRY(check_keys(root, {"defaultAction", "defaultErrnoRet", "defaultErrno", "architectures", "archMap", "flags",
                             "syscalls", "comment"}));
  OciProfile profile;
  FilterSpec& spec = profile.filter;
  spec.fallback = PCTX_TRY(read_action(root, "defaultAction", "defaultErrnoRet", "defaultErrno"));
  if (!spec.fallback.permits()) spec.unknown = Action::fail(ENOSYS);
  PCTX_TRY(check_architectures(root));
  if (root.has("flags")) PCTX_TRY(check_flags(root.at("flags")));
  if (root.has("syscalls")) {
    const Node entries = root.at("syscalls");
    if (!entries.value.is_array()) return wrong_at(entries, "is not a list");
    for (std::size_t i = 0; i < entries.value.size(); ++i) PCTX_TRY(read_entry(entries.at(i), options, profile));
  }
  std::stable_sort(spec.rules.begin(), spec.rules.end(),
                   [](const Rule& a, const Rule& b) { return leniency(a) < leniency(b); });
  if (const auto calls = refused_launch_calls(spec); !calls.empty()) {
    return usage_error(fmt::format("it refuses {}, without which no guest can be started", fmt::join(calls, ", ")),
                       calls.size() == 1 ? "allow it" : "allow them");
  }
  return profile;
}

std::vector<std::string_view> refuse_also(FilterSpec& profile, const std::vector<Rule>& rules) {
  std::vector<std::string_view> names;
  std::vector<Rule> stricter;  // than the permission that each stands before
  for (const Rule& rule : rules) {
    const auto known = stricter.size();
    bool decided = false;  // by a rule without conditions: nothing of the call is left to the fallback
    for (const Rule& own : profile.rules) {
      if (own.number != rule.number || decided) continue;
      decided = own.tests.empty();
      if (!own.action.permits()) continue;
      stricter.push_back({rule.number, rule.action, rule.tests});
      std::ranges::copy(own.tests, std::back_inserter(stricter.back().tests));
    }
    if (!decided && profile.fallback.permits()) stricter.push_back(rule);
    const std::string_view name = syscall_name(profile.arch, rule.number);
    if (stricter.size() > known && std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  const auto first_permission =
      std::ranges::find_if(profile.rules, [](const Rule& rule) { return rule.action.permits(); });
  profile.rules.insert(first_permission, stricter.begin(), stricter.end());
  return names;
}

void notify_refusals(FilterSpec& profile) {
  const auto notify_instead = [](Action& action) {
    if (action.kind == ActionKind::fail) action = Action::notify();
  };
  const auto is_probe = [&](int number) {
    const PolicyEntry* entry = policy_entry(syscall_name(profile.arch, number));
    return entry != nullptr && entry->condition == Condition::absent;
  };
  for (Rule& rule : profile.rules)
    if (rule.action != Action::fail(ENOSYS) || !is_probe(rule.number)) notify_instead(rule.action);
  if (profile.fallback == Action::fail(ENOSYS))
    for (int number = 0; number < syscall_limit(profile.arch); ++number)
      if (is_probe(number)) profile.rules.push_back({number, profile.fallback, {}});  // behind all others
  notify_instead(profile.fallback);
}

}  // namespace pctx
