// What a profile of the user's cannot take from the limits.
#include <gtest/gtest.h>

#include <linux/sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "plan/filter_eval.h"
#include "plan/plan.h"
#include "plan/refusal.h"

namespace pctx {
namespace {

// As Docker's own: everything that a container gets without capabilities, for any CPU and any memory.
constexpr const char* kLikeDockers = R"({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "syscalls": [
    {"names": ["sendmsg", "close", "write", "execve", "execveat", "exit_group", "read", "mmap", "memfd_create",
               "memfd_secret", "shmget", "splice", "sched_setaffinity", "socketpair", "setsockopt", "sched_yield"],
     "action": "SCMP_ACT_ALLOW"},
    {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]},
    {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
     "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
    {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]})";
constexpr const char* kAllowAll = R"({"defaultAction": "SCMP_ACT_ALLOW"})";

enum class HostLends { nothing, all_but_cpu, everything };

HostFeatures host_lending(HostLends lent) {
  HostFeatures host;
  host.kernel_major = 6;
  host.kernel_minor = 18;
  host.landlock_abi = 7;
  host.cpus = 4;
  host.attach_point = "/tmp";
  if (lent == HostLends::nothing) {
    host.cgroup = {.version = CgroupVersion::none, .why_none = "nobody lent one"};
  } else {
    host.cgroup = {
        .version = CgroupVersion::v2, .unified = "/sys/fs/cgroup", .cpu_controller = lent == HostLends::everything};
  }
  return host;
}

Plan profiled(HostLends lent, const char* profile, bool let_go = false, bool no_listener = false) {
  Policy policy;
  policy.seccomp = "/p.json";
  if (let_go) policy.allow_degraded.set(index(Layer::cgroups));
  CompileInputs inputs;
  inputs.seccomp_profile = profile;
  inputs.no_listener = no_listener;
  auto plan = compile(policy, host_lending(lent), inputs);
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().what);
  return plan ? *std::move(plan) : Plan{};
}

seccomp_data profiled_call(std::string_view name, std::initializer_list<std::uint64_t> args = {}) {
  seccomp_data call{};
  call.nr = syscall_number(kHostArch, name).value_or(-1);
  call.arch = audit_arch(kHostArch);
  std::copy(args.begin(), args.end(), call.args);
  return call;
}

std::uint32_t answer(const Plan& plan, std::string_view name, std::initializer_list<std::uint64_t> args = {}) {
  return evaluate(plan.filter, profiled_call(name, args));
}

std::string binds(const Plan& plan, std::string_view limit) {
  const auto found = std::ranges::find(plan.bindings, limit, &LimitBinding::limit);
  return found != plan.bindings.end() ? found->by : "";
}

bool is_said(const Plan& plan, std::string_view words) {
  return std::ranges::any_of(plan.notices, [&](const std::string& each) { return each.find(words) != each.npos; });
}

constexpr std::uint64_t kVfork = CLONE_VFORK | 17, kVforkOfShell = CLONE_VFORK | CLONE_VM | 17;

TEST(ProfilePlan, what_would_dodge_a_limit_without_cgroups_stays_refused) {
  for (const char* profile : {kLikeDockers, kAllowAll}) {
    const Plan plan = profiled(HostLends::nothing, profile);
    for (const char* name : {"memfd_create", "memfd_secret", "shmget", "sched_setaffinity"}) {
      EXPECT_EQ(answer(plan, name), SECCOMP_RET_USER_NOTIF) << name;
      const RefusalAnswer told = answer_refusal(plan, profiled_call(name));
      EXPECT_EQ(told.code, EPERM) << name;
      EXPECT_NE(told.reason.find("although the profile allows it"), std::string::npos) << told.reason;
    }
    EXPECT_EQ(answer(plan, "mmap", {0, 4096, 3, 0x21}), SECCOMP_RET_USER_NOTIF);
    EXPECT_TRUE(shared_mapping(plan, profiled_call("mmap", {0, 4096, 3, 0x21}))) << "and some of it is granted";
    EXPECT_EQ(answer(plan, "splice"), fails_with(EINVAL)) << "programs copy";
    EXPECT_EQ(answer(plan, "setsockopt", {3, SOL_SOCKET, SO_SNDBUF}), fails_with(0));
    for (const char* name : {"socket", "socketpair"})
      for (const std::uint64_t type : {SOCK_DGRAM, SOCK_RAW})
        EXPECT_EQ(answer(plan, name, {AF_UNIX, type | SOCK_CLOEXEC}), SECCOMP_RET_USER_NOTIF) << name << type;
    EXPECT_EQ(answer(plan, "clone", {kVfork}), SECCOMP_RET_USER_NOTIF);
    EXPECT_EQ(answer(plan, "clone3"), fails_with(ENOSYS));
    EXPECT_EQ(binds(plan, "memory"), "watchdog");
    EXPECT_EQ(binds(plan, "cpus"), "pinning");
    EXPECT_TRUE(is_said(plan, "--seccomp /p.json: refused although it allows them"));
    EXPECT_NE(plan.layer(Layer::seccomp).detail.find("calls that it allows and limits do not: "), std::string::npos);

    // The control: what dodges no limit is the profile's to say.
    for (const char* name : {"read", "sched_yield"}) EXPECT_EQ(answer(plan, name), kAllow) << name;
    EXPECT_EQ(answer(plan, "mmap", {0, 4096, 3, 0x22}), kAllow);
    EXPECT_EQ(answer(plan, "socket", {AF_UNIX, SOCK_STREAM}), kAllow);
    EXPECT_EQ(answer(plan, "clone", {kVforkOfShell}), kAllow);
  }
  EXPECT_EQ(answer(profiled(HostLends::nothing, kAllowAll), "ptrace"), kAllow);
}

TEST(ProfilePlan, a_listener_above_us_gets_nobody_the_calls) {
  const Plan plan = profiled(HostLends::nothing, kLikeDockers, false, true);
  for (const char* name : {"memfd_create", "sched_setaffinity"}) EXPECT_EQ(answer(plan, name), fails_with(EPERM));
  EXPECT_EQ(answer(plan, "read"), kAllow);
}

TEST(ProfilePlan, what_it_refuses_itself_is_answered_as_it_says) {
  const Plan plan = profiled(HostLends::nothing, R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
      {"name": "memfd_create", "action": "SCMP_ACT_KILL_PROCESS"},
      {"name": "shmget", "action": "SCMP_ACT_ERRNO", "errnoRet": 13}]})");
  EXPECT_EQ(answer(plan, "memfd_create"), kKill);
  EXPECT_EQ(answer_refusal(plan, profiled_call("shmget")).code, EACCES);
  EXPECT_EQ(answer_refusal(plan, profiled_call("shmget")).reason, "the profile says so: /p.json");
  EXPECT_EQ(answer(plan, "msgget"), SECCOMP_RET_USER_NOTIF);
}

TEST(ProfilePlan, where_cgroups_bind_it_decides) {
  const Plan everything = profiled(HostLends::everything, kLikeDockers);
  for (const char* name : {"memfd_create", "shmget", "splice", "sched_setaffinity"})
    EXPECT_EQ(answer(everything, name), kAllow) << name;
  EXPECT_FALSE(is_said(everything, "refused although"));
  const Plan pinned = profiled(HostLends::all_but_cpu, kLikeDockers);
  EXPECT_EQ(answer(pinned, "memfd_create"), kAllow);
  EXPECT_EQ(answer(pinned, "sched_setaffinity"), SECCOMP_RET_USER_NOTIF);
  EXPECT_TRUE(is_said(pinned, "sched_setaffinity"));
}

TEST(ProfilePlan, limits_that_the_user_lets_go_are_not_said_to_bind) {
  const Plan plan = profiled(HostLends::nothing, kLikeDockers, true);
  for (const char* name : {"memfd_create", "sched_setaffinity"}) EXPECT_EQ(answer(plan, name), kAllow) << name;
  EXPECT_EQ(binds(plan, "cpus"), "not bound: the profile allows sched_setaffinity");
  EXPECT_TRUE(binds(plan, "memory").starts_with("not bound: the profile allows ")) << binds(plan, "memory");
  EXPECT_TRUE(is_said(plan, "limits that --allow-degraded lets go: cpus 1 (not bound: the profile allows sched_set"));
  // The control: the same consent where the profile asks for nothing of the kind.
  const Plan tight = profiled(HostLends::nothing, R"({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
      {"names": ["sendmsg", "close", "write", "execve", "execveat", "exit_group"], "action": "SCMP_ACT_ALLOW"}]})",
                              true);
  EXPECT_EQ(binds(tight, "memory"), "watchdog");
  EXPECT_EQ(binds(tight, "cpus"), "pinning");
}

}  // namespace
}  // namespace pctx
