// The filter of a plan: our own list, or the OCI profile that the user names.
#include <algorithm>

#include <fmt/format.h>

#include "plan/oci_profile.h"
#include "plan/plan.h"
#include "plan/ready_filters.h"
#include "plan/syscall_policy.h"

namespace pctx {
namespace {

// Lists that people have name calls of many machines: one line, whatever they hold.
template <class Name>
std::string first_few(const std::vector<Name>& names) {
  constexpr std::size_t kShown = 3;
  const std::size_t shown = std::min(names.size(), kShown);
  const std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

struct LimitByFilter {
  const char* limit;
  FilterOptions options;
};

// Limits always bind: where the filter is part of what binds one, a profile does not take that part away, unless
// the user lets the limit go. Then it is not said to bind.
void keep_limits(Plan& plan, const std::string& name, const FilterOptions& ours, FilterSpec& spec) {
  const bool let_go = plan.policy.allow_degraded.test(index(Layer::cgroups));
  std::vector<std::string_view> kept;
  FilterOptions unpinned = ours, accounted = ours;
  unpinned.pins_cpus = false;
  unpinned.semaphores_are_charged |= ours.memory_is_accounted;
  accounted.memory_is_accounted = accounted.semaphores_are_charged = true;
  for (const auto& [limit, options] : {LimitByFilter{"memory", unpinned}, LimitByFilter{"cpus", accounted}}) {
    FilterSpec stricter = spec;
    const auto names = refuse_also(stricter, limit_rules(spec.arch, options));
    if (names.empty()) continue;
    if (!let_go) {
      spec = std::move(stricter);
      kept.insert(kept.end(), names.begin(), names.end());
      continue;
    }
    const auto bound = std::ranges::find(plan.bindings, limit, &LimitBinding::limit);
    bound->by = fmt::format("not bound: the profile allows {}", first_few(names));
    plan.notices.push_back(
        fmt::format("limits that --allow-degraded lets go: {} {} ({})", limit, bound->value, bound->by));
  }
  if (kept.empty()) return;
  plan.layer(Layer::seccomp).detail += fmt::format(", calls that it allows and limits do not: {}", kept.size());
  plan.notices.push_back(fmt::format(
      "{}: refused although it allows them, or limits would not bind without cgroups: {}", name, first_few(kept)));
}

}  // namespace

Result<void> plan_filter(Plan& plan, const HostFeatures& host, const CompileInputs& inputs) {
  LayerState& layer = plan.layer(Layer::seccomp);
  if (inputs.missing.test(index(Layer::seccomp))) {
    layer = {false, "this host refuses filters; accepted by --allow-degraded"};
    return {};
  }
  const bool accounted = plan.cgroup.version != CgroupVersion::none;
  const FilterOptions options{.memory_is_accounted = accounted,
                              .pins_cpus = plan.pin_cpus != 0,
                              .zygote = inputs.pool,
                              .semaphores_are_charged = accounted && host.kernel_at_least(5, 15),
                              .refusal = inputs.no_listener ? Refusal::error : Refusal::notify};
  if (inputs.seccomp_profile) {
    const std::string name = fmt::format("{} {}", plan.policy.names.of("seccomp"), plan.policy.seccomp.value_or("?"));
    const OciProfileOptions here{
        .kernel = {static_cast<unsigned>(host.kernel_major), static_cast<unsigned>(host.kernel_minor)}};
    OciProfile profile = PCTX_TRY(named(name, read_oci_profile(*inputs.seccomp_profile, here)));
    FilterSpec& spec = profile.filter;
    layer.detail = fmt::format("profile {}", plan.policy.seccomp.value_or("?"));
    if (!profile.ignored.empty()) {
      layer.detail += fmt::format(", names unknown here and so not refused: {}", profile.ignored.size());
      plan.notices.push_back(
          fmt::format("{}: no system call here, so not refused: {}", name, first_few(profile.ignored)));
    }
    plan.profile = spec;
    if (!inputs.no_listener) notify_refusals(spec);
    keep_limits(plan, name, options, spec);
    plan.filter = PCTX_TRY(compile_filter(spec));
  } else {
    const auto ready = ready_filter(options);
    plan.filter.assign(ready.begin(), ready.end());
    layer.detail = "default allow-list";
  }
  plan.listener = !inputs.no_listener;
  layer.on = true;
  layer.detail += fmt::format(", {} instructions", plan.filter.size());
  if (inputs.no_listener)
    layer.detail += ", refusals not recorded: a filter above this process has a listener of its own";
  return {};
}

}  // namespace pctx
