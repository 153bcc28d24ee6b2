// Which AppArmor profile the guest enters, and how.
#include <fmt/format.h>

#include "plan/plan.h"
#include "sys/apparmor.h"

namespace pctx {

std::string zygote_profile(const Policy& policy) {
  return policy.apparmor ? fmt::format("{}-zygote", *policy.apparmor) : std::string{kZygoteProfile};
}

std::string launch_profile(const Policy& policy) {
  return policy.apparmor ? fmt::format("{}-launch", *policy.apparmor) : std::string{kLaunchProfile};
}

Result<void> plan_apparmor(Plan& plan, const HostFeatures& host, const CompileInputs& inputs) {
  LayerState& layer = plan.layer(Layer::apparmor);
  const Policy& policy = plan.policy;
  const std::string name = inputs.pool ? zygote_profile(policy) : policy.apparmor.value_or(kGuestProfile);
  std::string mode = host.apparmor_mode;
  if (policy.apparmor) {
    // Asked for by name: without it nothing runs.
    if (!host.apparmor)
      return unavailable(fmt::format("the AppArmor profile {} cannot be entered: {}", name, sys::kNoAppArmor),
                         "name no profile on this host, or boot it with apparmor=1 security=apparmor");
    if (!inputs.profile_mode)
      return unavailable(fmt::format("the AppArmor profile {} is not loaded", name),
                         fmt::format("'pctx-sandbox apparmor install-commands --name {} --venv PATH' prints the lines "
                                     "that install and load it",
                                     *policy.apparmor));
    mode = *inputs.profile_mode;
  } else if (!host.apparmor_profile) {
    layer = {false, host.apparmor ? "the profile pctx-sandbox-guest is not loaded" : sys::kNoAppArmor};
    return {};
  }
  plan.apparmor = name;
  // Whoever confines us goes on confining what we start: the kernel then asks both profiles. It would refuse anything
  // else, since the guest may not gain rights by its exec (no_new_privs).
  plan.apparmor_stack = !host.confined_by.empty();
  // Profiles that people write themselves have none for this. Under a profile of the caller's its own does for us.
  if (!plan.apparmor_stack && (policy.apparmor ? inputs.launch_profile : host.launch_profile))
    plan.apparmor_launch = launch_profile(policy);
  const std::string label = plan.apparmor_stack ? fmt::format("{}//&{}", host.confined_by, name) : name;
  layer = {mode == "enforce" || mode == "kill", fmt::format("{} ({})", label, mode)};
  if (!layer.on)
    plan.notices.push_back(
        fmt::format("WARNING: the AppArmor profile {} is in {} mode, in which it refuses nothing", name, mode));
  return {};
}

}  // namespace pctx
