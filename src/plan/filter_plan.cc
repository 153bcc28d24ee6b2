// The filter of a plan: our own list, or the OCI profile that the user names.
#include <fmt/format.h>

#include "plan/oci_profile.h"
#include "plan/plan.h"
#include "plan/ready_filters.h"
#include "plan/syscall_policy.h"

namespace pctx {

Result<void> plan_filter(Plan& plan, const HostFeatures& host, const CompileInputs& inputs) {
  LayerState& layer = plan.layer(Layer::seccomp);
  if (inputs.missing.test(index(Layer::seccomp))) {
    layer = {false, "this host refuses filters; accepted by --allow-degraded"};
    return {};
  }
  const bool accounted = plan.cgroup.version != CgroupVersion::none;
  if (inputs.seccomp_profile) {
    FilterSpec spec = PCTX_TRY(read_oci_profile(
        *inputs.seccomp_profile,
        {.kernel = {static_cast<unsigned>(host.kernel_major), static_cast<unsigned>(host.kernel_minor)}}));
    layer.detail = fmt::format("profile {}", plan.policy.seccomp.value_or("?"));
    if (!accounted)
      plan.notices.push_back(
          "--seccomp replaces our filter: without cgroups it must itself refuse memfd_create, shmget and shared "
          "anonymous "
          "mmap, or the memory limit can be dodged");
    if (const std::string_view call = refused_launch_call(spec); !call.empty())
      return usage_error(
          fmt::format("--seccomp: the profile refuses '{}', without which nothing can be started", call));
    plan.profile = spec;
    if (!inputs.no_listener) notify_refusals(spec);
    plan.filter = PCTX_TRY(compile_filter(spec));
  } else {
    const auto ready = ready_filter({.memory_is_accounted = accounted,
                                     .pins_cpus = plan.pin_cpus != 0,
                                     .zygote = inputs.pool,
                                     .refusal = inputs.no_listener ? Refusal::error : Refusal::notify});
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
