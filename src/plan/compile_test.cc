#include <gtest/gtest.h>

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "plan/plan.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

HostFeatures root_host() {
  HostFeatures host;
  host.privileged = true;
  host.kernel_major = 6;
  host.kernel_minor = 18;
  host.landlock_abi = 7;
  host.first_free_id = 0x70000000;
  host.cgroup = {
      .version = CgroupVersion::v2, .unified = "/sys/fs/cgroup", .cpu_controller = true, .io_controller = true};
  host.system = {{"/usr", PathKind::directory, ""},
                 {"/bin", PathKind::link, "usr/bin"},
                 {"/lib64", PathKind::link, "usr/lib64"},
                 {"/etc/ld.so.cache", PathKind::file, ""},
                 {"/etc/localtime", PathKind::link, "/usr/share/zoneinfo/Etc/UTC"}};
  host.attach_point = "/tmp";
  host.cpus = 4;
  return host;
}

HostFeatures user_host() {
  HostFeatures host = root_host();
  host.uid = host.gid = 1000;
  host.privileged = false;
  host.cgroup = {.version = CgroupVersion::none, .why_none = "no cgroup is delegated to this user"};
  return host;
}

const RootOp* find(const Plan& plan, RootOpKind kind, std::string_view target) {
  for (const RootOp& op : plan.root)
    if (op.kind == kind && op.target == target) return &op;
  return nullptr;
}

std::string bound_by(const Plan& plan, std::string limit) {
  std::replace(limit.begin(), limit.end(), '-', '_');
  for (const LimitBinding& each : plan.bindings)
    if (each.limit == limit) return each.by;
  return "";
}

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
  EXPECT_EQ(find(*plan, RootOpKind::file, "etc/resolv.conf")->text, "nameserver 198.18.0.1\n");
  EXPECT_FALSE(compile({}, root_host(), {})->network);
  EXPECT_EQ(find(*compile({}, root_host(), {}), RootOpKind::file, "etc/resolv.conf")->text, "");
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

TEST(Limits, without_cgroups_the_next_best_binds_and_is_named) {
  const auto plan = compile({}, user_host(), {});
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->watchdog.memory);
  EXPECT_EQ(plan->pin_cpus, 1U);
  EXPECT_TRUE(plan->cgroup_writes.empty());
  ASSERT_FALSE(plan->notices.empty());
  for (const LimitBinding& limit : plan->bindings) EXPECT_NE(limit.by, "cgroup v2") << limit.limit;
}

TEST(Limits, what_only_cgroups_can_bind_is_refused_without_them) {
  for (const auto& [change, option] : {std::pair{+[](Policy& p) { p.limits.cpus = 500; }, "--cpus"},
                                       {+[](Policy& p) { p.limits.io_read = 1_MiB; }, "--io-read"}}) {
    Policy policy;
    change(policy);
    const auto refused = compile(policy, user_host(), {});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().what.find(option), std::string::npos);
    EXPECT_TRUE(compile(policy, root_host(), {}));
    policy.allow_degraded.set(index(Layer::cgroups));
    const auto degraded = compile(policy, user_host(), {});
    ASSERT_TRUE(degraded);
    EXPECT_TRUE(bound_by(*degraded, std::string{option}.substr(2)).starts_with("not bound")) << option;
  }
}

TEST(Limits, a_guest_with_the_callers_uid_has_few_descriptors) {
  Policy policy;
  policy.limits.files = 513;
  EXPECT_TRUE(compile(policy, root_host(), {})) << "a uid of its own";
  const auto refused = compile(policy, user_host(), {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("--files 513"), std::string::npos);
  policy.allow_degraded.set(index(Layer::subordinate_ids));
  EXPECT_TRUE(compile(policy, user_host(), {}));
  policy = {};
  policy.limits.files = 512;
  EXPECT_TRUE(compile(policy, user_host(), {}));
}

TEST(Limits, no_guest_is_promised_more_descriptors_than_its_caller_may_have) {
  HostFeatures host = root_host();
  host.files = 100;
  const auto plan = compile({}, host, {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(std::ranges::find(plan->bindings, "files", &LimitBinding::limit)->value, "100");
  EXPECT_EQ(std::ranges::find(plan->rlimits, RLIMIT_NOFILE, &ResourceLimit::resource)->value, 100U);
  Policy policy;
  policy.limits.files = 101;
  const auto refused = compile(policy, host, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("more than 100"), std::string::npos);
  policy.limits.files = 100;
  EXPECT_TRUE(compile(policy, host, {}));
}

TEST(Limits, a_watchdog_needs_the_proc_of_the_box) {
  CompileInputs inputs;
  inputs.missing.set(index(Layer::proc));
  Policy policy;
  policy.allow_degraded.set(index(Layer::proc));
  const auto refused = compile(policy, user_host(), inputs);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("limits are bound by a watchdog"), std::string::npos);
  EXPECT_TRUE(compile(policy, root_host(), inputs)) << "cgroups bind them";
  policy.limits.cpu_time = Millis{1000};
  EXPECT_FALSE(compile(policy, root_host(), inputs));
}

TEST(Limits, what_systemd_did_not_delegate_is_not_promised) {
  HostFeatures host = root_host();
  host.cgroup.cpu_controller = host.cgroup.io_controller = false;
  const auto plan = compile({}, host, {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->pin_cpus, 1U);
  for (const CgroupWrite& write : plan->cgroup_writes) EXPECT_NE(write.file, "cpu.max");
  Policy policy;
  policy.limits.io_write = 1_MiB;
  EXPECT_FALSE(compile(policy, host, {}));
  policy.allow_degraded.set(index(Layer::cgroups));
  const auto degraded = compile(policy, host, {});
  ASSERT_TRUE(degraded);
  EXPECT_EQ(bound_by(*degraded, "io_write"), "not bound");
  ASSERT_EQ(degraded->notices.size(), 1U);
  EXPECT_EQ(degraded->notices[0], "limits that --allow-degraded lets go: io_write 1 MiB/s (not bound)");
  EXPECT_TRUE(plan->notices.empty());
}

TEST(Root, what_lies_in_another_place_is_mounted_after_it) {
  Policy policy;
  policy.binds = {{"/data/git", "/p/git", false}, {"/data", "/p", true}, {"/tool", "/scratch/tool", false}};
  policy.tmpfs = {{"/scratch", 8_MiB}, {"/p/cache", 8_MiB}};
  const CompileInputs inputs{.binds = {{"/data/git", true}, {"/data", true}, {"/tool", true}}};
  const auto plan = compile(policy, root_host(), inputs);
  ASSERT_TRUE(plan) << plan.error().what;
  const RootOp* outer = find(*plan, RootOpKind::bind, "p");
  const RootOp* inner = find(*plan, RootOpKind::bind, "p/git");
  const RootOp* cache = find(*plan, RootOpKind::tmpfs, "p/cache");
  const RootOp* tool = find(*plan, RootOpKind::bind, "scratch/tool");
  ASSERT_TRUE(outer && inner && cache && tool);
  EXPECT_TRUE(outer < inner && outer < cache && find(*plan, RootOpKind::tmpfs, "scratch") < tool);
  EXPECT_TRUE(inner->inside && cache->inside) << "nothing is made in what is lent";
  EXPECT_FALSE(find(*plan, RootOpKind::directory, "p/git") || find(*plan, RootOpKind::directory, "p/cache"));
  EXPECT_FALSE(outer->inside || tool->inside) << "the box's own places are made";
  EXPECT_TRUE(find(*plan, RootOpKind::directory, "scratch/tool"));

  policy.binds[2].target = "/p/cache/tool";
  EXPECT_FALSE(compile(policy, root_host(), inputs));
}

TEST(Root, places_are_told_apart_behind_the_boxs_own_links) {
  HostFeatures host = root_host();
  host.system.push_back({"/srv", PathKind::link, "/usr/srv/"});
  host.system.push_back({"/round", PathKind::link, "round"});
  const auto placed_at = [&](const char* place) {
    Policy policy;
    policy.binds = {{"/data", place, false}};
    const auto plan = compile(policy, host, {.binds = {{"/data", true}}});
    return plan ? std::string{find(*plan, RootOpKind::bind, place + 1) ? place : plan->root.back().target} : "refused";
  };
  EXPECT_EQ(placed_at("/var/tmp/w/x"), "tmp/w/x");
  EXPECT_EQ(placed_at("/var/tmp"), "refused") << "/tmp is the sandbox's own";
  EXPECT_EQ(placed_at("/etc/mtab"), "refused") << "it is in /proc";
  EXPECT_EQ(placed_at("/srv/x"), "usr/srv/x");
  EXPECT_EQ(placed_at("/var/tmpx"), "/var/tmpx");
  EXPECT_EQ(placed_at("/round/x"), "/round/x") << "and the kernel says what it thinks of it";

  Policy policy;
  policy.binds = {{"/data/x", "/var/tmp/w/x", false}, {"/data", "/tmp/w", true}};
  const CompileInputs inputs{.binds = {{"/data/x", true}, {"/data", true}}};
  const auto plan = compile(policy, host, inputs);
  ASSERT_TRUE(plan) << plan.error().what;
  const RootOp* inner = find(*plan, RootOpKind::bind, "tmp/w/x");
  ASSERT_TRUE(inner);
  EXPECT_TRUE(inner->inside && find(*plan, RootOpKind::bind, "tmp/w") < inner);

  policy.binds[0].target = "/var/tmp/w";
  const auto same = compile(policy, host, inputs);
  ASSERT_FALSE(same);
  EXPECT_EQ(same.error().what, "two things would lie at /tmp/w");
}

TEST(Root, an_old_kernel_lends_no_tree_that_would_stay_writable_inside) {
  HostFeatures host = root_host();
  host.kernel_major = 5;
  host.kernel_minor = 10;
  ASSERT_TRUE(compile({}, host, {}));
  host.mount_points = {"/", "/usrlocal", "/usr/local"};
  const auto refused = compile({}, host, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("/usr/local"), std::string::npos);
}

TEST(Limits, v1_cannot_throttle_buffered_writes_and_says_so) {
  HostFeatures host = root_host();
  host.cgroup = {.version = CgroupVersion::v1, .memory = "/m", .pids = "/p", .cpu = "/c", .memsw = true};
  Policy policy;
  ASSERT_TRUE(compile(policy, host, {}));
  policy.limits.io_write = 1_MiB;
  const auto refused = compile(policy, host, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("v1 cannot throttle"), std::string::npos);
}

// On v1 our init is in the cgroups of a Worker, and in none of a run's.
TEST(Limits, processes_are_those_of_the_guest) {
  HostFeatures v1 = root_host();
  v1.cgroup = {.version = CgroupVersion::v1, .memory = "/m", .pids = "/p", .cpu = "/c", .memsw = true};
  const auto most = [](const HostFeatures& host, const CompileInputs& inputs) {
    Policy policy;
    policy.limits.pids = 5;
    const auto plan = compile(policy, host, inputs);
    for (const CgroupWrite& write : plan->cgroup_writes)
      if (write.file == "pids.max") return write.value;
    return std::string{};
  };
  EXPECT_EQ(most(v1, {}), "5");
  EXPECT_EQ(most(v1, {.pool = true}), "6");
  EXPECT_EQ(most(root_host(), {}), "6");
}

TEST(Limits, swap_is_part_of_memory) {
  HostFeatures host = root_host();
  host.cgroup = {.version = CgroupVersion::v1, .memory = "/m", .pids = "/p", .cpu = "/c", .memsw = true};
  const auto v1 = compile({}, host, {});
  const auto v2 = compile({}, root_host(), {});
  const auto has = [](const Plan& plan, std::string_view file) {
    for (const CgroupWrite& write : plan.cgroup_writes)
      if (write.file == file) return true;
    return false;
  };
  EXPECT_TRUE(has(*v1, "memory.memsw.limit_in_bytes"));
  EXPECT_TRUE(has(*v2, "memory.swap.max"));
  EXPECT_TRUE(has(*v2, "memory.oom.group"));
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

TEST(Root, lent_folders_of_another_owner_are_id_mapped) {
  Policy policy;
  policy.mnt = "/data";
  const auto plan = compile(policy, root_host(), {.mnt = LentPath{"/data", true, 0, 0, 0755}});
  ASSERT_TRUE(plan);
  const RootOp* mnt = find(*plan, RootOpKind::bind, "mnt");
  ASSERT_NE(mnt, nullptr);
  EXPECT_TRUE(mnt->idmap);
  EXPECT_EQ(mnt->attributes & abi::kMountRdonly, 0U);
}

TEST(Root, a_place_in_the_box_has_one_on_the_host_where_it_is_lent) {
  Policy policy;
  policy.mnt = "/data";
  policy.binds = {{"/tools/file", "/mnt/sub/file", false}};
  policy.tmpfs = {{"/opt/empty"}};
  const auto plan = compile(
      policy, root_host(), {.binds = {{"/tools/file", false, 0, 0, 0644}}, .mnt = LentPath{"/data", true, 0, 0, 0755}});
  ASSERT_TRUE(plan);
  for (const auto& [there, here] : {std::pair{"/mnt/./a/b", "/data/a/b"},
                                    {"/mnt/sub/file", "/tools/file"},
                                    {"/mnt/sub/files", "/data/sub/files"},
                                    {"/usr/bin/env", "/usr/bin/env"},
                                    {"/bin/../bin/env", "/usr/bin/env"},
                                    {"/mnt/../etc/shadow", ""},
                                    {"/etc/passwd", ""},
                                    {"/tmp/x", ""},
                                    {"/opt/empty/x", ""},
                                    {"/proc/1/exe", ""},
                                    {"/nowhere", ""},
                                    {"/", ""}})
    EXPECT_EQ(host_place(*plan, there), here) << there;
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
