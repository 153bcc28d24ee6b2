#include "plan/refusal.h"

#include <cerrno>

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "plan/syscall_policy.h"

namespace pctx {
namespace {

bool kills(const Action& action) {
  return action.kind == ActionKind::kill_process || action.kind == ActionKind::kill_thread ||
         action.kind == ActionKind::trap;
}

// The kernel may back a few bytes with a whole huge page, whatever its settings say: MADV_COLLAPSE asks for one.
constexpr std::uint64_t kHugePage = 2_MiB;

bool accounted(const Plan& plan) { return plan.cgroup.version != CgroupVersion::none; }

// A call that the profile allows comes to us only if a limit would not bind with it.
bool refused_by_profile(const Plan& plan, const seccomp_data& call) {
  return plan.profile && !decide(*plan.profile, call).permits();
}

std::string our_reason(const Plan& plan, const seccomp_data& call) {
  const PolicyEntry* entry = policy_entry(syscall_name(kHostArch, call.nr));
  if (entry == nullptr && plan.profile)
    return fmt::format("no cgroup counts the memory behind it here: {}; pctx-sandbox doctor tells what would help",
                       plan.cgroup.why_none);
  if (entry == nullptr) return "not on the list of calls that a guest may make; --seccomp FILE replaces that list";
  if (makes_filter(plan, call))
    return fmt::format("a run may set {} filters of its own: nobody counts their memory", kMostFilters);
  if (shared_mapping(plan, call))
    return fmt::format(
        "no cgroup counts shared anonymous memory here ({}): a run gets {} of it, each mapping counted in full and for "
        "good; map a file of /dev/shm or private memory, or raise --memory",
        plan.cgroup.why_none, format_size(shared_allowance(plan)));
  if (!accounted(plan) && is_refused_as_unaccounted(kHostArch, call))
    return fmt::format("{}, and here it is not: {}; pctx-sandbox doctor tells what would help", entry->reason,
                       plan.cgroup.why_none);
  return plan.profile ? std::string{entry->reason} : fmt::format("{}; --seccomp FILE replaces our list", entry->reason);
}

}  // namespace

std::uint64_t shared_allowance(const Plan& plan) { return plan.policy.limits.memory / kSharedPartOfMemory; }

std::optional<std::uint64_t> shared_mapping(const Plan& plan, const seccomp_data& call) {
  if (refused_by_profile(plan, call) || accounted(plan) || syscall_name(kHostArch, call.nr) != "mmap")
    return std::nullopt;
  if ((call.args[3] & kMapSharedAnonymous) != kMapSharedAnonymous || (call.args[3] & kMapHuge) != 0)
    return std::nullopt;
  const std::uint64_t length = std::max<std::uint64_t>(call.args[1], 1);  // or none could be had without end
  if (length > UINT64_MAX - kHugePage) return std::nullopt;
  return (length + kHugePage - 1) / kHugePage * kHugePage;
}

bool makes_filter(const Plan& plan, const seccomp_data& call) { return !plan.profile && sets_filter(kHostArch, call); }

RefusalAnswer answer_refusal(const Plan& plan, const seccomp_data& call) {
  if (refused_by_profile(plan, call)) {
    const Action action = decide(*plan.profile, call);
    return {action.kind == ActionKind::fail ? action.data : EPERM,
            fmt::format("the profile says so: {}", plan.policy.seccomp.value_or("?"))};
  }
  const std::string reason = our_reason(plan, call);
  return {refusal_errno(kHostArch, call),
          plan.profile ? fmt::format("refused although the profile allows it, or a limit would not bind: {}", reason)
                       : reason};
}

std::string killed_calls(const Plan& plan) {
  constexpr std::size_t kShown = 8;
  if (!plan.layer(Layer::seccomp).on) return "";
  constexpr std::string_view kForeign = "calls of another architecture or of 32 bits";
  if (!plan.profile) return std::string{kForeign};
  if (kills(plan.profile->fallback)) return fmt::format("calls that the profile does not allow, and {}", kForeign);
  std::vector<std::string_view> names;
  for (const Rule& rule : plan.profile->rules) {
    const std::string_view name = syscall_name(plan.profile->arch, rule.number);
    if (kills(rule.action) && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return std::string{kForeign};
  const std::size_t more = names.size() - std::min(names.size(), kShown);
  names.resize(names.size() - more);
  return fmt::format("{}{} by the profile, and {}", fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "", kForeign);
}

}  // namespace pctx
