#include "plan/oci_profile.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/filter_eval.h"

namespace pctx {
namespace {

constexpr OciProfileOptions kNewKernel{.kernel = {6, 18}};
constexpr std::uint64_t kAboveLow = 0x100000000;

std::string payload(const std::string& name) {
  std::ifstream file(std::string(PCTX_SOURCE_DIR "/tests/payloads/oci/") + name);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

enum class Notified { no, yes };

class ProfiledGuest {
 public:
  explicit ProfiledGuest(const std::string& text, const OciProfileOptions& options = kNewKernel,
                         Notified heard = Notified::no) {
    auto profile = read_oci_profile(text, options);
    EXPECT_TRUE(profile.has_value()) << (profile ? "" : profile.error().what);
    if (!profile) return;
    if (heard == Notified::yes) notify_refusals(profile->filter);
    auto program = compile_filter(profile->filter);
    EXPECT_TRUE(program.has_value());
    if (program) program_ = *std::move(program);
  }
  std::uint32_t answer(std::string_view name, const std::array<std::uint64_t, 6>& args = {}) const {
    return answer(syscall_number(kHostArch, name).value_or(-1), args);
  }
  std::uint32_t answer(int number, const std::array<std::uint64_t, 6>& args = {}) const {
    seccomp_data call{};
    call.nr = number;
    call.arch = audit_arch(kHostArch);
    for (std::size_t i = 0; i < args.size(); ++i) call.args[i] = args[i];
    return evaluate(program_, call);
  }

 private:
  std::vector<sock_filter> program_;
};

// What a complaint about `text` says; empty if there is none.
std::string complaint(const std::string& text) {
  const auto spec = read_oci_profile(text, kNewKernel);
  if (spec) return "";
  EXPECT_EQ(spec.error().kind, ErrorKind::usage);
  EXPECT_NE(spec.error().hint, "") << spec.error().what;
  return spec.error().what;
}
// The same for one entry in an otherwise good profile.
std::string complaint_about(const std::string& entry) {
  return complaint(
      R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"name": "read", "action": "SCMP_ACT_ALLOW"}, )" + entry +
      "]}");
}
ProfiledGuest guest_with(const std::string& entries, const std::string& fallback = "SCMP_ACT_ALLOW") {
  return ProfiledGuest(
      R"({"defaultAction": ")" + fallback +
      R"(", "syscalls": [{"names": ["sendmsg", "close", "write", "execve", "execveat", "exit_group"], )"
      R"("action": "SCMP_ACT_ALLOW"}, )" +
      entries + "]}");
}

TEST(OciProfile, a_container_profile_is_read_for_a_guest_without_capabilities) {
  const ProfiledGuest guest(payload("container.json"));
  EXPECT_EQ(guest.answer("read"), kAllow);
  EXPECT_EQ(guest.answer("getcwd"), fails_with(EPERM)) << "excluded on this architecture";
  EXPECT_EQ(guest.answer("mount"), fails_with(EPERM)) << "needs a capability";
  EXPECT_EQ(guest.answer("unshare"), fails_with(EPERM));
  EXPECT_EQ(guest.answer("clone3"), fails_with(ENOSYS));
  EXPECT_EQ(guest.answer("clone", {17}), kAllow);
  EXPECT_EQ(guest.answer("clone", {0x10000000 | 17}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("personality", {0}), kAllow);
  EXPECT_EQ(guest.answer("personality", {8}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("chroot"), SECCOMP_RET_KILL_PROCESS);
  EXPECT_EQ(guest.answer("uname"), SECCOMP_RET_LOG);
  EXPECT_EQ(guest.answer(5000), fails_with(ENOSYS)) << "newer than the table";
  if (kHostArch == Arch::x86_64) {
    EXPECT_EQ(guest.answer("open"), kAllow);
    EXPECT_EQ(guest.answer(static_cast<int>(kX32Bit)), SECCOMP_RET_KILL_PROCESS) << "although the profile lists x32";
  }
}

TEST(OciProfile, min_kernel_is_compared_with_the_given_version) {
  const auto ptrace_on = [](unsigned version, unsigned patchlevel) {
    return ProfiledGuest(payload("container.json"), {.kernel = {version, patchlevel}}).answer("ptrace");
  };
  EXPECT_EQ(ptrace_on(4, 7), fails_with(EPERM));
  EXPECT_EQ(ptrace_on(4, 8), kAllow);
  EXPECT_EQ(ptrace_on(4, 10), kAllow) << "10 is more than 8";
  EXPECT_EQ(ptrace_on(6, 0), kAllow);
}

TEST(OciProfile, a_deny_list_keeps_its_default) {
  const ProfiledGuest guest(payload("deny_list.json"));
  EXPECT_EQ(guest.answer("ioctl", {0, 0x5413}), kAllow);
  EXPECT_EQ(guest.answer("ioctl", {0, 0x5412}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("keyctl"), fails_with(ENOSYS));
  EXPECT_EQ(guest.answer("bpf"), fails_with(ENOSYS)) << "traced without a tracer";
  EXPECT_EQ(guest.answer("mount"), SECCOMP_RET_TRAP);
  EXPECT_EQ(guest.answer(5000), kAllow);
}

TEST(OciProfile, upper_bits_neither_dodge_a_refusal_nor_earn_a_permission) {
  const ProfiledGuest allowing(payload("container.json"));
  EXPECT_EQ(allowing.answer("socket", {2}), kAllow);
  EXPECT_EQ(allowing.answer("socket", {40}), fails_with(EPERM));
  EXPECT_EQ(allowing.answer("socket", {40 | kAboveLow}), fails_with(EPERM));
  const ProfiledGuest denying(payload("deny_list.json"));
  EXPECT_EQ(denying.answer("ioctl", {0, 0x5412 | kAboveLow}), fails_with(EPERM));
  for (const auto& [op, inside, outside] : std::initializer_list<std::tuple<const char*, std::uint64_t, std::uint64_t>>{
           {"GT", 41, 40}, {"GE", 40, 39}, {"LT", 39, 40}, {"LE", 40, 41}}) {
    const std::string test = std::string(R"("args": [{"index": 0, "value": 40, "op": "SCMP_CMP_)") + op + R"("}]})";
    const ProfiledGuest permission =
        guest_with(R"({"name": "socket", "action": "SCMP_ACT_ALLOW", )" + test, "SCMP_ACT_ERRNO");
    EXPECT_EQ(permission.answer("socket", {inside}), kAllow) << op;
    EXPECT_EQ(permission.answer("socket", {outside}), fails_with(EPERM)) << op;
    EXPECT_EQ(permission.answer("socket", {outside | kAboveLow}), fails_with(EPERM)) << op;
    const ProfiledGuest refusal = guest_with(R"({"name": "socket", "action": "SCMP_ACT_ERRNO", )" + test);
    EXPECT_EQ(refusal.answer("socket", {inside}), fails_with(EPERM)) << op;
    EXPECT_EQ(refusal.answer("socket", {inside | kAboveLow}), fails_with(EPERM)) << op;
    EXPECT_EQ(refusal.answer("socket", {outside}), kAllow) << op;
  }
}

TEST(OciProfile, values_beyond_32_bits_are_compared_in_full) {
  const ProfiledGuest guest = guest_with(
      R"({"name": "lseek", "action": "SCMP_ACT_ERRNO", "args": [{"index": 1, "value": 4294967336, "op": "SCMP_CMP_EQ"}]})");
  EXPECT_EQ(guest.answer("lseek", {0, 40 | kAboveLow}), fails_with(EPERM));
  EXPECT_EQ(guest.answer("lseek", {0, 40}), kAllow);
}

TEST(OciProfile, the_strictest_matching_rule_wins_in_any_order) {
  const std::string allow = R"({"name": "socket", "action": "SCMP_ACT_ALLOW"})";
  const std::string refuse =
      R"({"name": "socket", "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 16, "op": "SCMP_CMP_EQ"}]})";
  const std::string kill =
      R"({"name": "socket", "action": "SCMP_ACT_KILL", "args": [{"index": 1, "value": 3, "op": "SCMP_CMP_EQ"}]})";
  for (const std::string& entries : {allow + "," + refuse + "," + kill, kill + "," + refuse + "," + allow}) {
    const ProfiledGuest guest = guest_with(entries);
    EXPECT_EQ(guest.answer("socket", {1, 1}), kAllow);
    EXPECT_EQ(guest.answer("socket", {16, 1}), fails_with(EPERM));
    EXPECT_EQ(guest.answer("socket", {16, 3}), SECCOMP_RET_KILL_THREAD);
  }
}

TEST(OciProfile, refusals_notify_only_on_request) {
  const ProfiledGuest silent(payload("container.json"));
  EXPECT_EQ(silent.answer("mount"), fails_with(EPERM));
  const ProfiledGuest guest(payload("container.json"), kNewKernel, Notified::yes);
  EXPECT_EQ(guest.answer("mount"), SECCOMP_RET_USER_NOTIF);
  EXPECT_EQ(guest.answer("clone", {0x10000000}), SECCOMP_RET_USER_NOTIF);
  EXPECT_EQ(guest.answer("clone3"), fails_with(ENOSYS));
  EXPECT_EQ(guest.answer("execve"), kAllow);
}

TEST(OciProfile, a_refusal_is_heard_of_whatever_its_error) {
  const ProfiledGuest guest(R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
      {"name": "mkdirat", "action": "SCMP_ACT_ERRNO", "errnoRet": 13},
      {"name": "unlinkat", "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
      {"name": "bpf", "action": "SCMP_ACT_ERRNO", "errnoRet": 0},
      {"name": "ptrace", "action": "SCMP_ACT_TRACE"},
      {"name": "clone3", "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
      {"name": "openat2", "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
      {"name": "symlinkat", "action": "SCMP_ACT_KILL_PROCESS"}]})",
                            kNewKernel, Notified::yes);
  for (const char* name : {"mkdirat", "unlinkat", "bpf", "ptrace", "clone3"})
    EXPECT_EQ(guest.answer(name), SECCOMP_RET_USER_NOTIF) << name;
  EXPECT_EQ(guest.answer("openat2"), fails_with(ENOSYS)) << "our own list answers this, too: libraries fall back";
  EXPECT_EQ(guest.answer("symlinkat"), SECCOMP_RET_KILL_PROCESS);
  EXPECT_EQ(guest.answer("read"), kAllow);
}

TEST(OciProfile, by_default_a_refusal_is_heard_of_unless_libraries_only_try_it) {
  const ProfiledGuest guest(R"({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "syscalls": [
      {"names": ["sendmsg", "close", "write", "execve", "execveat", "exit_group"], "action": "SCMP_ACT_ALLOW"}]})",
                            kNewKernel, Notified::yes);
  EXPECT_EQ(guest.answer("mkdirat"), SECCOMP_RET_USER_NOTIF);
  for (const char* name : {"clone3", "openat2"}) EXPECT_EQ(guest.answer(name), fails_with(ENOSYS)) << name;
  EXPECT_EQ(guest.answer(4000), fails_with(ENOSYS)) << "newer than our table";
  EXPECT_EQ(guest.answer("write"), kAllow);
}

TEST(OciProfile, errors_can_be_named_as_podman_does) {
  const ProfiledGuest guest = guest_with(R"({"name": "bpf", "action": "SCMP_ACT_ERRNO", "errno": "EACCES"})");
  EXPECT_EQ(guest.answer("bpf"), fails_with(EACCES));
  EXPECT_NE(complaint_about(R"({"name": "bpf", "action": "SCMP_ACT_ERRNO", "errno": "EPERM", "errnoRet": 38})"), "");
  EXPECT_NE(complaint_about(R"({"name": "bpf", "action": "SCMP_ACT_ERRNO", "errno": "ENOTHING"})"), "");
}

TEST(OciProfile, complaints_name_the_place) {
  EXPECT_EQ(complaint(payload("broken_operator.json")),
            R"(syscalls[1].args[0].op is the unknown operator "SCMP_CMP_IS")");
  const std::pair<const char*, const char*> entries[] = {
      {R"({"name": "bpf", "action": "SCMP_ACT_MAYBE"})",
       R"(syscalls[1].action is the unknown action "SCMP_ACT_MAYBE")"},
      {R"({"name": "bpf", "action": "SCMP_ACT_NOTIFY"})", "syscalls[1].action is SCMP_ACT_NOTIFY"},
      {R"({"name": "bpf", "action": "SCMP_ACT_ALLOW", "arg": []})", R"(syscalls[1] has the unknown key "arg")"},
      {R"({"name": "bpf"})", "syscalls[1] has no action"},
      {R"({"action": "SCMP_ACT_ALLOW"})", "syscalls[1] names no system call"},
      {R"({"name": "a", "names": ["b"], "action": "SCMP_ACT_ALLOW"})", "syscalls[1] has both name and names"},
      {R"({"names": ["b", 3], "action": "SCMP_ACT_ALLOW"})", "syscalls[1].names[1] is not a string"},
      {R"({"name": "bpf", "action": "SCMP_ACT_ALLOW", "errnoRet": 1})", "syscalls[1] gives an error number"},
      {R"({"name": "bpf", "action": "SCMP_ACT_ERRNO", "errnoRet": 5000})", "syscalls[1].errnoRet is 5000"},
      {R"({"name": "bpf", "action": "SCMP_ACT_ERRNO", "args": [{"index": 6, "value": 0, "op": "SCMP_CMP_EQ"}]})",
       "syscalls[1].args[0].index is 6"},
      {R"({"name": "bpf", "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": -1, "op": "SCMP_CMP_EQ"}]})",
       "syscalls[1].args[0].value is not a whole number"},
      {R"({"name": "bpf", "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 1.5, "op": "SCMP_CMP_EQ"}]})",
       "syscalls[1].args[0].value is not a whole number"},
      {R"({"name": "bpf", "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 1}]})",
       "syscalls[1].args[0] has no op"},
      {R"({"name": "a", "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"},
          {"index": 0, "value": 2, "op": "SCMP_CMP_EQ"}]})",
       "syscalls[1].args[1] tests argument 0 a second time"},
      {R"({"name": "bpf", "action": "SCMP_ACT_ALLOW", "includes": {"cap": []}})",
       R"(syscalls[1].includes has the unknown key "cap")"},
      {R"({"name": "bpf", "action": "SCMP_ACT_ALLOW", "excludes": {"minKernel": "new"}})",
       "syscalls[1].excludes.minKernel is"},
      {R"("read")", "syscalls[1] is not an object"},
  };
  for (const auto& [entry, expected] : entries) {
    EXPECT_NE(complaint_about(entry).find(expected), std::string::npos) << entry << "\n" << complaint_about(entry);
  }
}

TEST(OciProfile, documents_that_are_no_profile_are_refused) {
  EXPECT_EQ(complaint(payload("broken_unfinished.json")), "not valid JSON at line 2, column 1");
  EXPECT_EQ(complaint(payload("broken_no_exec.json")),
            "it refuses execve, execveat, exit_group, without which no guest can be started");
  EXPECT_EQ(complaint(R"({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
      {"names": ["read", "write", "close", "execve", "exit_group"], "action": "SCMP_ACT_ALLOW"}]})"),
            "it refuses sendmsg, execveat, without which no guest can be started");
  EXPECT_NE(complaint(""), "");
  EXPECT_NE(complaint("[]"), "");
  EXPECT_NE(complaint("{}").find("has no defaultAction"), std::string::npos);
  EXPECT_NE(complaint(R"({"defaultAction": "SCMP_ACT_ALLOW", "surprise": 1})").find(R"("surprise")"),
            std::string::npos);
  EXPECT_NE(complaint(R"({"defaultAction": "SCMP_ACT_ERRNO", "defaultAction": "SCMP_ACT_ALLOW"})").find("twice"),
            std::string::npos);
  EXPECT_NE(complaint(R"({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/agent"})"), "");
  EXPECT_NE(complaint(R"({"defaultAction": "SCMP_ACT_ALLOW", "flags": ["FAST"]})").find("flags[0]"), std::string::npos);
  EXPECT_NE(
      complaint(R"({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_S390X"]})").find("not made for"),
      std::string::npos);
  EXPECT_NE(complaint(R"({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["PDP11"]})").find("architectures[0]"),
            std::string::npos);
  EXPECT_EQ(complaint(R"({"defaultAction": "SCMP_ACT_ALLOW"})"), "") << "control: the smallest good profile";
}

TEST(OciProfile, size_and_depth_are_bounded) {
  EXPECT_NE(complaint(std::string(kMaxProfileBytes + 1, ' ')).find("bytes"), std::string::npos);
  const std::string deep = R"({"defaultAction": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_NE(complaint(deep).find("nested deeper"), std::string::npos);
  const std::string long_name = std::string(R"({"defaultAction": "SCMP_ACT_)") + std::string(5000, 'x') + "\"}";
  EXPECT_LT(complaint(long_name).size(), 200u);
}

// What `text` refuses and nobody heeds.
std::vector<std::string> ignored_in(const std::string& text) {
  const auto profile = read_oci_profile(text, kNewKernel);
  EXPECT_TRUE(profile.has_value());
  return profile ? profile->ignored : std::vector<std::string>{};
}

TEST(OciProfile, a_misspelt_name_that_leaves_a_call_open_is_listed_once) {
  const std::string entries = R"("syscalls": [
      {"names": ["mkdirr", "mkdir", "mkdirr", "two\u001b"], "action": "SCMP_ACT_ERRNO"},
      {"names": ["mkdirr"], "action": "SCMP_ACT_KILL"}, {"names": ["reed"], "action": "SCMP_ACT_LOG"},
      {"names": ["elsewhere"], "action": "SCMP_ACT_ERRNO", "includes": {"arches": ["s390x"]}}]})";
  EXPECT_EQ(ignored_in(R"({"defaultAction": "SCMP_ACT_ALLOW", )" + entries),
            (std::vector<std::string>{R"("mkdirr")", R"("two\u001b")"}));
}

TEST(OciProfile, names_that_leave_nothing_open_are_not_listed) {
  // Of another machine, and where everything that is not named is refused.
  EXPECT_TRUE(ignored_in(R"({"defaultAction": "SCMP_ACT_ALLOW",
      "syscalls": [{"names": ["arch_prctl", "mkdir", "open", "renameat"], "action": "SCMP_ACT_ERRNO"}]})")
                  .empty());
  EXPECT_TRUE(ignored_in(payload("container.json")).empty());
  EXPECT_TRUE(ignored_in(payload("deny_list.json")).empty());
}

}  // namespace
}  // namespace pctx
