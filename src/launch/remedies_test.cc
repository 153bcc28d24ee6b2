#include "launch/remedies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "launch/apparmor_profiles.h"

namespace pctx {
namespace {

// A host on which nothing is missing: an ordinary user of a systemd host with cgroup v2 and AppArmor.
HostFacts everything() {
  HostFacts facts;
  facts.host.uid = facts.host.gid = 1000;
  facts.host.kernel = "6.8.0-45-generic";
  facts.host.kernel_major = 6;
  facts.host.kernel_minor = 8;
  facts.host.landlock_abi = 4;
  facts.host.apparmor = facts.host.apparmor_profile = facts.guest_profile = true;
  facts.host.subuid = facts.host.subgid = IdRange{100000, 65536};
  facts.host.id_helpers = true;
  facts.host.cgroup.ask_systemd = true;
  for (ProbedLayer& layer : facts.layers) layer = {true, 0};
  facts.max_user_namespaces = 60000;
  facts.lsm = "lockdown,capability,landlock,yama,apparmor";
  facts.apparmor_parser = true;
  facts.cgroups = CgroupVersion::v2;
  facts.controllers = {"cpu", "io", "memory", "pids"};
  facts.systemd = facts.user_manager = true;
  facts.user = "ada";
  facts.packages = PackageManager::apt;
  facts.program = "/usr/local/bin/pctx-sandbox";
  return facts;
}

void refuse(HostFacts& facts, std::initializer_list<Layer> layers, int code) {
  for (Layer layer : layers) facts.layers[index(layer)] = {false, code};
}

constexpr std::initializer_list<Layer> kNamespaces{Layer::user,    Layer::pid, Layer::mount,
                                                   Layer::network, Layer::ipc, Layer::proc};

HostFacts ubuntu_24_04() {
  HostFacts facts = everything();
  facts.apparmor_restricts_userns = 1;
  // The namespaces are made, but their owner has no power in them.
  refuse(facts, {Layer::mount, Layer::proc}, EPERM);
  return facts;
}

HostFacts docker_default() {
  HostFacts facts = everything();
  facts.host.uid = 0;  // without CAP_SYS_ADMIN: not privileged
  facts.container = Container::docker;
  facts.own_profile = "docker-default";
  facts.proc_masked = true;
  facts.host.cgroup = {};
  facts.guest_profile = false;
  refuse(facts, kNamespaces, ENOSYS);
  return facts;
}

HostFacts bare_metal_root() {
  HostFacts facts = everything();
  facts.host.uid = 0;
  facts.host.privileged = true;
  facts.host.subuid = facts.host.subgid = std::nullopt;
  facts.host.cgroup.version = CgroupVersion::v2;
  facts.user = "root";
  return facts;
}

std::string text(const Remedy& remedy, std::string_view sudo = "sudo ") {
  std::string all;
  for (const Instruction& step : remedy.steps) all += step.line(sudo) + "\n";
  return all;
}

bool has(const std::string& haystack, std::string_view needle) { return haystack.find(needle) != std::string::npos; }

TEST(Remedies, nothing_is_advised_where_nothing_is_missing) {
  EXPECT_TRUE(remedies(everything()).empty());
  EXPECT_TRUE(remedies(bare_metal_root()).empty());
  EXPECT_TRUE(setup_actions(bare_metal_root(), everything()).empty());
}

TEST(Remedies, ubuntu_24_04_gets_the_launcher_profile_and_the_line_that_loads_it) {
  const auto list = remedies(ubuntu_24_04());
  ASSERT_EQ(list.size(), 1U);
  EXPECT_TRUE(list[0].blocks);
  EXPECT_EQ(list[0].doer, Doer::setup);
  EXPECT_TRUE(has(list[0].why, "kernel.apparmor_restrict_unprivileged_userns = 1")) << list[0].why;
  ASSERT_EQ(list[0].steps.size(), 2U);
  EXPECT_EQ(list[0].steps[0].file, "/etc/apparmor.d/pctx-sandbox");
  EXPECT_EQ(list[0].steps[0].content, kLauncherProfileText);
  EXPECT_EQ(list[0].steps[1].line("sudo "), "sudo apparmor_parser -r /etc/apparmor.d/pctx-sandbox");
}

TEST(Remedies, an_installed_launcher_profile_is_only_loaded_again) {
  HostFacts facts = ubuntu_24_04();
  facts.launcher_profile = kLauncherProfileText;
  const auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(text(list[0]), "sudo apparmor_parser -r /etc/apparmor.d/pctx-sandbox\n");
}

TEST(Remedies, the_restriction_is_no_matter_where_a_box_can_be_made) {
  HostFacts facts = everything();
  facts.apparmor_restricts_userns = 1;
  EXPECT_TRUE(remedies(facts).empty());
}

TEST(Remedies, the_launcher_profile_names_a_program_elsewhere_and_keeps_what_others_added) {
  const auto one = launcher_profile_for("/home/ada/.venv/bin/pctx-sandbox", "");
  ASSERT_TRUE(one);
  EXPECT_TRUE(has(*one, "\n@{pctx_launchers} += \"/home/ada/.venv/bin/pctx-sandbox\"\nprofile pctx-sandbox "));
  const auto two = launcher_profile_for("/srv/pctx-sandbox", *one);
  ASSERT_TRUE(two);
  EXPECT_TRUE(has(*two, "/home/ada/") && has(*two, "\"/srv/pctx-sandbox\""));
  EXPECT_EQ(launcher_profile_for("/home/ada/.venv/bin/pctx-sandbox", *two), two);
  EXPECT_EQ(launcher_profile_for("/usr/bin/pctx-sandbox", ""), std::string{kLauncherProfileText});
}

TEST(Remedies, a_path_with_a_meaning_in_a_profile_or_a_shell_is_never_written_into_one) {
  for (const char* path : {"/tmp/*/pctx-sandbox", "/tmp/a\"b", "/tmp/{a,b}", "/tmp/$(id)", "/tmp/a b", "relative", ""})
    EXPECT_EQ(launcher_profile_for(path, ""), std::nullopt) << path;
  HostFacts facts = ubuntu_24_04();
  facts.program = "/tmp/it's here/pctx-sandbox";
  const auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].steps[0].line(), "install '/tmp/it'\\''s here/pctx-sandbox' /usr/local/bin/pctx-sandbox");
  EXPECT_EQ(list[0].steps[1].content, kLauncherProfileText);
  facts.user = "ada; reboot";
  facts.host.subuid = std::nullopt;
  refuse(facts, {Layer::subordinate_ids}, ENOENT);
  for (const Remedy& remedy : remedies(facts)) EXPECT_FALSE(has(text(remedy), "reboot"));
}

TEST(Remedies, docker_default_gets_the_smallest_line) {
  const auto list = remedies(docker_default());
  ASSERT_EQ(list.size(), 2U);
  EXPECT_TRUE(list[0].blocks);
  EXPECT_EQ(list[0].doer, Doer::container);
  EXPECT_EQ(text(list[0], ""),
            "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
            "systempaths=unconfined IMAGE\n");
  EXPECT_EQ(list[1].about, "cgroups");
  EXPECT_FALSE(list[1].blocks);
  EXPECT_TRUE(has(text(list[1], ""), "--security-opt writable-cgroups=true"));
  EXPECT_TRUE(setup_actions(docker_default(), docker_default()).empty()) << "a container is fixed from outside";
}

TEST(Remedies, docker_names_only_what_is_in_the_way) {
  HostFacts facts = docker_default();
  for (Layer layer : kNamespaces) facts.layers[index(layer)] = {true, 0};
  refuse(facts, {Layer::proc}, EPERM);
  const auto list = remedies(facts);
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list[0].about, "proc");
  EXPECT_EQ(text(list[0], ""), "docker run --security-opt systempaths=unconfined IMAGE\n");
}

TEST(Remedies, podman_and_kubernetes_have_words_of_their_own) {
  HostFacts facts = docker_default();
  facts.container = Container::podman;
  facts.own_profile = "";
  EXPECT_EQ(text(remedies(facts).at(0), ""),
            "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL IMAGE\n");
  facts.container = Container::kubernetes;
  facts.own_profile = "cri-containerd.apparmor.d";
  EXPECT_EQ(text(remedies(facts).at(0), ""),
            "securityContext: {procMount: Unmasked, seccompProfile: {type: Unconfined}, appArmorProfile: {type: "
            "Unconfined}}   # of the container\nhostUsers: false   # of the pod\n");
}

TEST(Remedies, root_without_capabilities_is_told_the_one_it_needs) {
  HostFacts facts = docker_default();
  for (ProbedLayer& layer : facts.layers) layer = {true, 0};
  facts.maps_own_id = false;
  refuse(facts, {Layer::user}, EPERM);
  EXPECT_EQ(text(remedies(facts).at(0), ""), "docker run --cap-add SETFCAP IMAGE\n");
  facts.container = Container::kubernetes;
  refuse(facts, {Layer::proc}, EPERM);
  EXPECT_EQ(text(remedies(facts).at(0), ""),
            "securityContext: {capabilities: {add: [SETFCAP]}, procMount: Unmasked}   # of the container\n"
            "hostUsers: false   # of the pod\n");
  HostFacts bare = bare_metal_root();
  bare.host.privileged = bare.maps_own_id = false;
  refuse(bare, {Layer::user}, EPERM);
  const auto list = remedies(bare);
  ASSERT_FALSE(list.empty());
  EXPECT_TRUE(list[0].blocks && list[0].steps.empty() && has(list[0].why, "CAP_SETFCAP"));
}

TEST(Remedies, a_box_without_proc_is_offered_only_where_cgroups_bind_its_limits) {
  HostFacts facts = bare_metal_root();
  facts.proc_masked = true;
  refuse(facts, {Layer::proc}, EPERM);
  EXPECT_TRUE(has(text(remedies(facts).at(0)), "--allow-degraded proc"));
  refuse(facts, {Layer::cgroups}, EACCES);
  EXPECT_FALSE(has(text(remedies(facts).at(0)), "--allow-degraded proc"));
}

TEST(Remedies, what_a_container_may_have_beside_comes_in_one_line_with_what_it_must) {
  HostFacts facts = docker_default();
  for (Layer layer : kNamespaces) facts.layers[index(layer)] = {true, 0};
  refuse(facts, {Layer::proc, Layer::uts}, EPERM);
  const auto list = remedies(facts);
  const auto uts = std::find_if(list.begin(), list.end(), [](const Remedy& each) { return each.about == "uts"; });
  ASSERT_NE(uts, list.end());
  EXPECT_EQ(text(*uts, ""),
            "docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined IMAGE\n");
}

TEST(Remedies, debian_with_user_namespaces_off_gets_a_setting_that_stays) {
  HostFacts facts = everything();
  facts.userns_clone = 0;
  refuse(facts, kNamespaces, EPERM);
  const auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(text(list[0]),
            "sudo tee /etc/sysctl.d/60-pctx-sandbox-userns.conf >/dev/null <<'END'\n"
            "kernel.unprivileged_userns_clone = 1\nEND\n"
            "sudo sysctl -p /etc/sysctl.d/60-pctx-sandbox-userns.conf\n");
}

TEST(Remedies, root_is_not_bothered_with_what_only_binds_others_but_setup_fixes_it_for_them) {
  HostFacts user = everything();
  user.userns_clone = 0;
  refuse(user, kNamespaces, EPERM);
  HostFacts root = bare_metal_root();
  root.userns_clone = 0;
  EXPECT_TRUE(remedies(root).empty());
  EXPECT_EQ(setup_actions(root, user).size(), 1U);
}

TEST(Remedies, a_limit_of_no_user_namespaces_is_raised_for_root_too) {
  HostFacts facts = bare_metal_root();
  facts.max_user_namespaces = 0;
  refuse(facts, kNamespaces, ENOSPC);
  const auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_TRUE(has(text(list[0]), "user.max_user_namespaces = 15000"));
  EXPECT_EQ(setup_actions(facts, facts).size(), 1U) << "the same thing twice";
}

TEST(Remedies, rootless_without_subordinate_ids_gets_a_free_range) {
  HostFacts facts = everything();
  facts.host.subuid = facts.host.subgid = std::nullopt;
  refuse(facts, {Layer::subordinate_ids}, ENOENT);
  auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_FALSE(list[0].blocks);
  EXPECT_EQ(text(list[0]), "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ada\n");
  facts.free_subordinate_id = 165536;
  facts.host.id_helpers = false;
  for (const auto& [manager, line] : {std::pair{PackageManager::apt, "sudo apt-get install -y uidmap\n"},
                                      {PackageManager::dnf, "sudo dnf install -y shadow-utils\n"},
                                      {PackageManager::pacman, "sudo pacman -S --needed --noconfirm shadow\n"}}) {
    facts.packages = manager;
    list = remedies(facts);
    ASSERT_EQ(list.size(), 1U);
    EXPECT_EQ(text(list[0]),
              std::string{line} + "sudo usermod --add-subuids 165536-231071 --add-subgids 165536-231071 ada\n");
  }
}

TEST(Remedies, subordinate_ids_that_no_new_privs_makes_useless_are_nothing_for_setup) {
  HostFacts facts = everything();
  facts.host.no_set_id = "no_new_privs is set for the caller";
  refuse(facts, {Layer::subordinate_ids}, ENOENT);
  const auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].doer, Doer::caller);
  EXPECT_FALSE(list[0].blocks);
  EXPECT_TRUE(has(list[0].why, "no_new_privs is set for the caller, so that newuidmap gains no rights"));
  EXPECT_TRUE(list[0].steps.empty());
}

TEST(Remedies, rootless_on_cgroup_v1_is_told_that_it_cannot) {
  HostFacts facts = everything();
  facts.cgroups = CgroupVersion::v1;
  facts.host.cgroup = {};
  facts.controllers = {};
  const auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].doer, Doer::boot);
  EXPECT_TRUE(has(list[0].why, "cannot be delegated to an ordinary user")) << list[0].why;
  EXPECT_TRUE(setup_actions(bare_metal_root(), facts).empty());
}

TEST(Remedies, a_user_manager_without_controllers_gets_the_drop_in) {
  HostFacts facts = everything();
  facts.controllers = {"memory", "pids"};
  const auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_TRUE(has(list[0].why, "controllers cpu, io")) << list[0].why;
  EXPECT_EQ(text(list[0]),
            "sudo mkdir -p /etc/systemd/system/user@.service.d\n"
            "sudo tee /etc/systemd/system/user@.service.d/delegate.conf >/dev/null <<'END'\n"
            "[Service]\nDelegate=cpu cpuset io memory pids\nEND\n"
            "sudo systemctl daemon-reload\n");
}

TEST(Remedies, a_session_without_a_manager_of_its_own_is_told_how_to_get_one) {
  HostFacts facts = everything();
  facts.host.cgroup = {};
  facts.user_manager = false;
  EXPECT_TRUE(has(text(remedies(facts).at(0), ""), "sudo loginctl enable-linger ada"));
  facts.systemd = false;
  EXPECT_TRUE(has(remedies(facts).at(0).why, "only root can lend a cgroup"));
}

TEST(Remedies, a_kernel_without_landlock_gets_the_boot_parameter_with_its_other_modules) {
  HostFacts facts = everything();
  facts.lsm = "lockdown,capability,yama,apparmor";
  refuse(facts, {Layer::landlock}, ENOSYS);
  EXPECT_EQ(text(remedies(facts).at(0), ""), "lsm=landlock,lockdown,yama,apparmor\n");
  facts.host.kernel_major = 5;
  facts.host.kernel_minor = 10;
  EXPECT_TRUE(has(remedies(facts).at(0).why, "5.13"));
}

TEST(Remedies, a_kernel_that_is_too_old_comes_first) {
  HostFacts facts = ubuntu_24_04();
  facts.host.kernel = "5.4.0";
  facts.host.kernel_major = 5;
  facts.host.kernel_minor = 4;
  EXPECT_EQ(remedies(facts).at(0).about, "kernel");
  EXPECT_TRUE(remedies(facts).at(0).blocks);
}

TEST(Remedies, a_guest_profile_that_is_not_loaded_is_written_and_loaded_by_setup) {
  HostFacts facts = bare_metal_root();
  facts.guest_profile = facts.apparmor_parser = false;
  const auto actions = setup_actions(facts, std::nullopt);
  ASSERT_EQ(actions.size(), 1U);
  ASSERT_EQ(actions[0].steps.size(), 3U);
  EXPECT_EQ(actions[0].steps[0].line(), "apt-get install -y apparmor");
  EXPECT_EQ(actions[0].steps[1].file, "/etc/apparmor.d/pctx-sandbox-guest");
  EXPECT_EQ(actions[0].steps[1].content, kGuestProfileText);
  EXPECT_EQ(actions[0].steps[2].line(), "apparmor_parser -r /etc/apparmor.d/pctx-sandbox-guest");
}

TEST(Remedies, an_unexplained_refusal_still_says_what_was_refused) {
  HostFacts facts = everything();
  refuse(facts, {Layer::network}, EINVAL);
  const auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].about, "network");
  EXPECT_TRUE(list[0].blocks);
  EXPECT_TRUE(has(list[0].why, "Invalid argument")) << list[0].why;
}

TEST(Remedies, without_a_known_user_setup_does_nothing_for_one) {
  HostFacts user = everything();
  user.user = "";
  user.any_user = true;
  user.host.subuid = user.host.subgid = std::nullopt;
  user.host.id_helpers = false;
  refuse(user, {Layer::subordinate_ids}, ENOENT);
  EXPECT_TRUE(setup_actions(bare_metal_root(), user).empty());
  user.user = "ada";
  user.any_user = false;
  EXPECT_EQ(setup_actions(bare_metal_root(), user).size(), 1U);
}

TEST(Remedies, of_users_in_general_only_the_missing_helpers_are_told) {
  HostFacts user = everything();
  user.user = "";
  user.any_user = true;
  user.host.subuid = user.host.subgid = std::nullopt;
  refuse(user, {Layer::subordinate_ids}, ENOENT);
  EXPECT_TRUE(remedies(user).empty()) << "nobody has looked at anybody's ids";
  user.host.id_helpers = false;
  auto list = remedies(user);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].why, "newuidmap and newgidmap are not installed: a guest has the caller's uid");
  EXPECT_EQ(text(list[0]), "sudo apt-get install -y uidmap\n");
  user.any_user = false;  // the control: a uid without a name is somebody
  EXPECT_TRUE(has(remedies(user)[0].why, "no subordinate ids")) << remedies(user)[0].why;
}

// Fedora and its kin: no AppArmor, SELinux in its place.
HostFacts fedora() {
  HostFacts facts = everything();
  facts.host.apparmor = facts.host.apparmor_profile = facts.guest_profile = facts.apparmor_parser = false;
  facts.lsm = "lockdown,capability,yama,selinux,bpf,landlock";
  facts.selinux_enforces = true;
  return facts;
}

TEST(Remedies, a_limit_that_is_reached_is_told_from_one_that_is_zero) {
  HostFacts facts = everything();
  refuse(facts, kNamespaces, ENOSPC);
  facts.max_user_namespaces = 100;
  auto list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_TRUE(list[0].blocks);
  EXPECT_TRUE(has(list[0].why, "the limit of user namespaces is reached")) << list[0].why;
  facts.max_user_namespaces = 0;
  list = remedies(facts);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_TRUE(has(list[0].why, "switched off")) << list[0].why;
}

TEST(Remedies, selinux_in_apparmors_place_leaves_nothing_to_do) { EXPECT_TRUE(remedies(fedora()).empty()); }

TEST(Remedies, a_refusal_of_selinux_is_called_by_its_name) {
  HostFacts facts = fedora();
  refuse(facts, kNamespaces, EACCES);
  const auto list = remedies(facts);
  ASSERT_FALSE(list.empty());
  EXPECT_TRUE(list[0].blocks);
  EXPECT_TRUE(has(list[0].why, "SELinux")) << list[0].why;
  facts.selinux_enforces = false;
  EXPECT_FALSE(has(remedies(facts)[0].why, "SELinux")) << "what is permissive refuses nothing";
}

TEST(Remedies, a_box_without_a_host_name_of_its_own_is_not_blocked) {
  HostFacts facts = everything();
  facts.container = Container::podman;
  refuse(facts, {Layer::uts}, EPERM);
  const auto list = remedies(facts);
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list[0].about, "uts");
  EXPECT_FALSE(list[0].blocks);
  ASSERT_EQ(list[0].steps.size(), 1U);
  EXPECT_EQ(list[0].steps[0].command, "podman run --security-opt seccomp=unconfined IMAGE");

  facts.container = Container::none;
  refuse(facts, {Layer::uts, Layer::cgroup_namespace}, ENOSPC);
  const auto limits = remedies(facts);
  ASSERT_EQ(limits.size(), 2U);
  EXPECT_NE(limits[1].why.find("user.max_cgroup_namespaces"), std::string::npos);
}

}  // namespace
}  // namespace pctx
