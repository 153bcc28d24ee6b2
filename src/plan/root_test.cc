#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "plan/planned.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

TEST(Root, what_lies_in_another_place_is_mounted_after_it) {
  Policy policy;
  policy.binds = {{"/data/git", "/p/git", false}, {"/data", "/p", true}, {"/tool", "/scratch/tool", false}};
  policy.tmpfs = {{"/scratch", 8_MiB}, {"/p/cache", 8_MiB}};
  const CompileInputs inputs{.binds = {{"/data/git", true}, {"/data", true}, {"/tool", true}}};
  const auto plan = compile(policy, root_host(), inputs);
  ASSERT_TRUE(plan) << plan.error().what;
  const RootOp* outer = op_of(*plan, RootOpKind::bind, "p");
  const RootOp* inner = op_of(*plan, RootOpKind::bind, "p/git");
  const RootOp* cache = op_of(*plan, RootOpKind::tmpfs, "p/cache");
  const RootOp* tool = op_of(*plan, RootOpKind::bind, "scratch/tool");
  ASSERT_TRUE(outer && inner && cache && tool);
  EXPECT_TRUE(outer < inner && outer < cache && op_of(*plan, RootOpKind::tmpfs, "scratch") < tool);
  EXPECT_TRUE(inner->inside && cache->inside) << "nothing is made in what is lent";
  EXPECT_FALSE(op_of(*plan, RootOpKind::directory, "p/git") || op_of(*plan, RootOpKind::directory, "p/cache"));
  EXPECT_FALSE(outer->inside || tool->inside) << "the box's own places are made";
  EXPECT_TRUE(op_of(*plan, RootOpKind::directory, "scratch/tool"));

  policy.binds[2].target = "/p/cache/tool";
  EXPECT_FALSE(compile(policy, root_host(), inputs));
}

TEST(Root, no_folder_on_the_way_to_what_is_lent_read_only_can_be_moved_away) {
  Policy policy;
  policy.mnt = "/work";
  policy.binds = {{"/data", "/p", true},
                  {"/data/a/b/git", "/p/a/b/git", false},
                  {"/data/git", "/p/git", false},
                  {"/other", "/p/a/c/d", true},
                  {"/tool", "/usr/share/tool", false},
                  {"/lib", "/mnt/x/lib", false},
                  {"/more", "/p/a/b/git/x/more", false}};
  CompileInputs inputs{.mnt = LentPath{"/work", true}};
  for (const Bind& bind : policy.binds) inputs.binds.push_back({bind.source, true});
  const auto plan = compile(policy, root_host(), inputs);
  ASSERT_TRUE(plan) << plan.error().what;
  std::string held;
  for (const RootOp& op : plan->root)
    if (op.kind == RootOpKind::hold) held += op.target + " ";
  EXPECT_EQ(held, "mnt/x p/a p/a/b ") << "none where something is mounted, or where nothing can be moved";
  EXPECT_LT(op_of(*plan, RootOpKind::bind, "p"), op_of(*plan, RootOpKind::hold, "p/a"));
  EXPECT_LT(op_of(*plan, RootOpKind::hold, "p/a/b"), op_of(*plan, RootOpKind::bind, "p/a/b/git"));
  EXPECT_EQ(host_place(*plan, "/p/a/b/file"), "/data/a/b/file");
}

TEST(Root, places_are_told_apart_behind_the_boxs_own_links) {
  HostFeatures host = root_host();
  host.system.push_back({"/srv", PathKind::link, "/usr/srv/"});
  host.system.push_back({"/round", PathKind::link, "round"});
  const auto placed_at = [&](const char* place) {
    Policy policy;
    policy.binds = {{"/data", place, false}};
    const auto plan = compile(policy, host, {.binds = {{"/data", true}}});
    return plan ? std::string{op_of(*plan, RootOpKind::bind, place + 1) ? place : plan->root.back().target} : "refused";
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
  const RootOp* inner = op_of(*plan, RootOpKind::bind, "tmp/w/x");
  ASSERT_TRUE(inner);
  EXPECT_TRUE(inner->inside && op_of(*plan, RootOpKind::bind, "tmp/w") < inner);

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

TEST(Root, lent_folders_of_another_owner_are_id_mapped) {
  Policy policy;
  policy.mnt = "/data";
  const auto plan = compile(policy, root_host(), {.mnt = LentPath{"/data", true, 0, 0, 0755}});
  ASSERT_TRUE(plan);
  const RootOp* mnt = op_of(*plan, RootOpKind::bind, "mnt");
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

}  // namespace
}  // namespace pctx
