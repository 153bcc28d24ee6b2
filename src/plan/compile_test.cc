#include <gtest/gtest.h>

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "plan/planned.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

TEST(Compile, is_pure) {
  const auto first = compile({}, root_host(), {.instance = 7});
  const auto second = compile({}, root_host(), {.instance = 7});
  ASSERT_TRUE(first && second);
  EXPECT_EQ(explain(*first), explain(*second));
}

// Golden plans: a change of what a box is made of shows up in review. Rewrite with PCTX_REWRITE_GOLDEN=1.
struct Golden {
  const char* name;
  Policy policy;
  HostFeatures host;
  CompileInputs inputs;
};

TEST(Compile, golden_plans) {
  Policy lent;
  lent.mnt = "/data";
  lent.binds = {{"/opt/tool", "/opt/tool", false}};
  lent.tmpfs = {{"/work", 8_MiB}};
  const LentPath data{"/data", true, 1000, 1000, 0700}, tool{"/opt/tool", true, 0, 0, 0755};
  Policy named;
  (void)parse_network("allow:api.example.com,*.example.org:443,192.0.2.7:8080", named);
  named.allowed.rate = 5_MiB;
  const Golden goldens[] = {{"allowed", named, user_host(), {.instance = 7}},
                            {"root_v2", {}, root_host(), {.instance = 7}},
                            {"rootless", {}, user_host(), {.instance = 7}},
                            {"lent", lent, root_host(), {.binds = {tool}, .mnt = data, .instance = 7}}};
  for (const Golden& golden : goldens) {
    const auto plan = compile(golden.policy, golden.host, golden.inputs);
    ASSERT_TRUE(plan) << plan.error().what;
    const std::string path = std::string{PCTX_SOURCE_DIR} + "/src/plan/golden/" + golden.name + ".txt";
    if (std::getenv("PCTX_REWRITE_GOLDEN") != nullptr) std::ofstream{path} << explain(*plan);
    std::ostringstream expected;
    expected << std::ifstream{path}.rdbuf();
    EXPECT_EQ(explain(*plan), expected.str()) << golden.name;
  }
}

TEST(Compile, a_folder_is_never_planned_over_a_file_nor_a_file_over_a_folder) {
  const LentPath folder{"/data", true, 0, 0, 0755}, file{"/f", false, 0, 0, 0644};
  const auto planned = [](const LentPath& lent, const char* target) {
    Policy policy;
    policy.binds = {{lent.path, target, false}};
    return compile(policy, root_host(), {.binds = {lent}});
  };
  EXPECT_TRUE(planned(folder, "/data"));
  EXPECT_TRUE(planned(file, "/etc/passwd"));
  EXPECT_TRUE(planned(file, "/home/sandbox/f"));
  EXPECT_TRUE(planned(folder, "/home/sandbox"));
  for (const auto& [lent, target] : {std::pair{folder, "/etc/passwd"},
                                     {folder, "/etc/passwd/x"},
                                     {file, "/etc/passwd/x"},
                                     {file, "/home/sandbox"},
                                     {file, "/usr"}}) {
    const auto plan = planned(lent, target);
    ASSERT_FALSE(plan) << target;
    EXPECT_NE(plan.error().what.find(std::string{target} + " cannot be a "), std::string::npos) << plan.error().what;
  }
}

TEST(Compile, all_namespaces_are_new) {
  const auto plan = compile({}, root_host(), {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->namespaces,
            std::uint64_t{CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS});
  EXPECT_TRUE(plan->cgroup_namespace);
}

TEST(Compile, an_allow_list_needs_a_network_of_its_own) {
  Policy policy;
  ASSERT_TRUE(parse_network("allow:api.example.com", policy));
  const auto plan = compile(policy, root_host(), {});
  ASSERT_TRUE(plan) << plan.error().what;
  ASSERT_TRUE(plan->network);
  EXPECT_EQ(plan->network->ports, (std::vector<std::uint16_t>{80, 443}));
  EXPECT_FALSE(plan->network->everything_is_local);
  EXPECT_EQ(op_of(*plan, RootOpKind::file, "etc/resolv.conf")->text, "nameserver 198.18.0.1\n");
  EXPECT_FALSE(compile({}, root_host(), {})->network);
  EXPECT_EQ(op_of(*compile({}, root_host(), {}), RootOpKind::file, "etc/resolv.conf")->text, "");
  CompileInputs inputs;
  inputs.missing.set(index(Layer::network));
  policy.allow_degraded.set(index(Layer::network));
  EXPECT_FALSE(compile(policy, root_host(), inputs)) << "on the host's network nothing would bind";
}

TEST(Compile, everything_lent_of_the_system_is_read_only) {
  const auto plan = compile({}, root_host(), {});
  ASSERT_TRUE(plan);
  for (const RootOp& op : plan->root)
    if (op.kind == RootOpKind::bind && !op.device) {
      EXPECT_NE(op.attributes & abi::kMountRdonly, 0U) << op.target;
      EXPECT_NE(op.attributes & abi::kMountNosuid, 0U) << op.target;
      EXPECT_NE(op.attributes & abi::kMountNodev, 0U) << op.target;
    }
}

TEST(Compile, root_never_runs_the_guest_as_root) {
  const auto plan = compile({}, root_host(), {.instance = 7});
  ASSERT_TRUE(plan);
  EXPECT_GE(plan->ids.host_uid, 0x70000000U);
  const auto other = compile({}, root_host(), {.instance = 8});
  EXPECT_NE(plan->ids.host_uid, other->ids.host_uid) << "boxes that live at the same time share no uid";
}

TEST(Compile, subordinate_ids_are_used_when_there) {
  HostFeatures host = user_host();
  EXPECT_EQ(compile({}, host, {})->ids.host_uid, 1000U);
  host.subuid = host.subgid = IdRange{100000, 65536};
  EXPECT_EQ(compile({}, host, {})->ids.host_uid, 1000U) << "without newuidmap they are of no use";
  host.id_helpers = true;
  const auto plan = compile({}, host, {.instance = 5});
  EXPECT_EQ(plan->ids.host_uid, 100005U);
  EXPECT_TRUE(plan->ids.by_helper);
  host.no_set_id = "somebody took it";
  EXPECT_EQ(compile({}, host, {})->ids.host_uid, 1000U) << "newuidmap gains no rights then";
  host.no_set_id = "";
  Policy lends;
  lends.mnt = "/data";
  const auto writing = compile(lends, host, {.mnt = LentPath{"/data", true, 1000, 1000, 0700}});
  EXPECT_EQ(writing->ids.host_uid, 1000U) << "a folder of the caller's can only be written as the caller";
  EXPECT_FALSE(writing->layer(Layer::subordinate_ids).on);
  Policy reads;
  reads.binds = {{"/data", "/data", false}};
  const auto uid_for = [&](unsigned mode, bool folder) {
    return compile(reads, host, {.binds = {LentPath{"/data", folder, 1000, 1000, mode}}, .instance = 5})->ids.host_uid;
  };
  for (const unsigned mode : {0755U, 0705U, 0555U}) EXPECT_EQ(uid_for(mode, true), 100005U) << mode;
  for (const unsigned mode : {0700U, 0711U, 0744U, 0750U}) EXPECT_EQ(uid_for(mode, true), 1000U) << mode;
  EXPECT_EQ(uid_for(0644, false), 100005U);
  EXPECT_EQ(uid_for(0600, false), 1000U);
}

TEST(Compile, a_required_layer_that_is_missing_is_an_error_that_names_it) {
  Policy policy;
  policy.require.set(index(Layer::landlock));
  HostFeatures host = root_host();
  ASSERT_TRUE(compile(policy, host, {}));
  host.landlock_abi = 0;
  const auto refused = compile(policy, host, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::unavailable);
  EXPECT_NE(refused.error().what.find("landlock"), std::string::npos);
  EXPECT_TRUE(compile({}, host, {})) << "it is used where it is, not required";
}

TEST(Compile, missing_required_layers_need_a_word_of_the_user) {
  CompileInputs inputs;
  inputs.missing.set(index(Layer::network));
  EXPECT_FALSE(compile({}, root_host(), inputs));
  Policy policy;
  policy.allow_degraded.set(index(Layer::network));
  const auto plan = compile(policy, root_host(), inputs);
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->layer(Layer::network).on);
  EXPECT_EQ(plan->namespaces & CLONE_NEWNET, 0U);
}

TEST(Compile, a_listener_above_us_costs_the_record_of_refusals_and_nothing_else) {
  CompileInputs inputs;
  inputs.no_listener = true;
  const auto plan = compile({}, root_host(), inputs);
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->listener);
  EXPECT_TRUE(plan->layer(Layer::seccomp).on);
  EXPECT_NE(plan->layer(Layer::seccomp).detail.find("refusals not recorded"), std::string::npos);
  for (const sock_filter& instruction : plan->filter)
    EXPECT_FALSE(instruction.code == (BPF_RET | BPF_K) && instruction.k == SECCOMP_RET_USER_NOTIF);
  // The control: with a listener there are such answers.
  const auto recorded = compile({}, root_host(), {});
  ASSERT_TRUE(recorded);
  EXPECT_TRUE(recorded->listener);
  EXPECT_TRUE(std::any_of(recorded->filter.begin(), recorded->filter.end(), [](const sock_filter& instruction) {
    return instruction.code == (BPF_RET | BPF_K) && instruction.k == SECCOMP_RET_USER_NOTIF;
  }));
}

TEST(Compile, some_layers_can_never_be_left_out) {
  for (Layer layer : {Layer::pid, Layer::mount}) {
    Policy policy;
    policy.allow_degraded.set(index(layer));
    CompileInputs inputs;
    inputs.missing.set(index(layer));
    EXPECT_FALSE(compile(policy, root_host(), inputs));
  }
}

TEST(Landlock, an_old_kernel_is_asked_only_for_what_it_knows) {
  for (int version = 1; version <= 7; ++version) {
    HostFeatures host = root_host();
    host.landlock_abi = version;
    const auto plan = compile({}, host, {});
    ASSERT_TRUE(plan);
    EXPECT_EQ((plan->landlock_handled & abi::kLandlockRefer) != 0, version >= 2);
    EXPECT_EQ((plan->landlock_handled & abi::kLandlockTruncate) != 0, version >= 3);
    EXPECT_EQ((plan->landlock_handled & abi::kLandlockIoctlDev) != 0, version >= 5);
    EXPECT_EQ(plan->landlock_scoped != 0, version >= 6);
    for (const LandlockRule& rule : plan->landlock) EXPECT_EQ(rule.access & ~plan->landlock_handled, 0U) << rule.path;
  }
}

TEST(Environment, nothing_is_inherited_and_options_win) {
  Policy policy;
  policy.env = {{"LANG", "de_DE.UTF-8"}, {"X", "1"}};
  const auto plan = compile(policy, root_host(), {});
  ASSERT_TRUE(plan);
  EXPECT_NE(std::find(plan->env.begin(), plan->env.end(), "LANG=de_DE.UTF-8"), plan->env.end());
  EXPECT_EQ(std::find(plan->env.begin(), plan->env.end(), "LANG=C.UTF-8"), plan->env.end());
  EXPECT_NE(std::find(plan->env.begin(), plan->env.end(), "X=1"), plan->env.end());
}

TEST(Compile, why_a_guest_has_the_callers_uid_is_said_with_a_next_step) {
  HostFeatures host;
  host.uid = host.gid = 1000;
  host.subuid = host.subgid = IdRange{100000, 65536};
  host.id_helpers = true;
  CompileInputs inputs;
  inputs.mnt = LentPath{"/srv/of-root", true, 0, 0, 0755, 1, 1};
  Policy policy;
  policy.mnt = "/srv/of-root";
  const auto plan = compile(policy, host, inputs);
  ASSERT_TRUE(plan.has_value()) << plan.error().what;
  EXPECT_EQ(plan->layer(Layer::subordinate_ids).detail,
            "the guest has the caller's uid: what it writes to the folder lent with --mnt is to be the caller's");
  policy.require.set(index(Layer::subordinate_ids));
  const auto refused = compile(policy, host, inputs);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().hint.find("--ro"), std::string::npos) << refused.error().hint;
}

}  // namespace
}  // namespace pctx
