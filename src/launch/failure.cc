// Words for what the child could only report as a number.
#include <algorithm>

#include <fmt/format.h>

#include "launch/spawn.h"
#include "sys/diagnose.h"

namespace pctx {
namespace {

std::string bind_source(const Plan& plan, std::size_t at) {
  return at < plan.root.size() ? plan.root[at].text : std::string{"?"};
}

std::string target(const Plan& plan, std::size_t at) {
  return at < plan.root.size() ? "/" + plan.root[at].target : std::string{"?"};
}

// The one that is no entry of the plan is the pid that a Worker's box counts from.
std::string setting(const Plan& plan, std::size_t at) {
  return at < plan.settings.size() ? plan.settings[at].path : std::string{"the first process id"};
}

std::string limit(const Plan& plan, std::size_t at) {
  return at < plan.rlimits.size() ? plan.rlimits[at].name : std::string{"?"};
}

Error place_failure(int code, const Plan& plan, std::size_t at) {
  const bool inside = at < plan.root.size() && plan.root[at].inside;
  Error error = os_error(fmt::format("cannot {} {} in the box", inside ? "mount at" : "make", target(plan, at)), code);
  if (inside && code == ENOENT) {
    error.kind = ErrorKind::usage;
    error.hint =
        "nothing is made in a folder of yours: make it there first, or choose another place, for example /data";
  } else if (inside && code == ELOOP) {
    error.kind = ErrorKind::usage;
    error.what = fmt::format("cannot mount at {} in the box: a link is in the way", target(plan, at));
    error.hint = "whoever may write there may have made it: remove it, or choose another place, for example /data";
  } else if (code == EROFS) {
    error.kind = ErrorKind::usage;
    error.hint =
        "it would lie in a folder that is lent read-only and does not have it: choose another place, for "
        "example /data";
  } else if (at < plan.root.size() && (plan.root[at].lent || plan.root[at].kind == RootOpKind::tmpfs)) {
    error.hint = "choose another place in the box, for example /data";
  }
  return error;
}

// Where a command is looked for is not always what it is by default.
const char* where_commands_are(const std::string& name, const Plan& plan) {
  if (name.find('/') != std::string::npos)
    return "paths are those of the box; lend a file or folder with --ro HOST[:GUEST]";
  if (plan.path != kDefaultPath) return "it is looked for in the PATH of the box, which --env PATH has set";
  const auto hides_usr = [](const std::string& place) { return place == "/usr" || place.starts_with("/usr/"); };
  const Policy& policy = plan.policy;
  if (std::ranges::any_of(policy.binds, hides_usr, &Bind::target) ||
      std::ranges::any_of(policy.tmpfs, hides_usr, &Tmpfs::target))
    return "what is put below /usr hides the host's programs there: choose another place, for example /data";
  return "the box has the host's /usr; lend other places with --ro DIR";
}

// A name may be as long as a command line, and a message of ours is a sentence.
std::string shortened(const std::string& name) {
  constexpr std::size_t kMostShown = 200;
  if (name.size() <= kMostShown) return name;
  std::size_t end = kMostShown;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;  // within a character of UTF-8
  return name.substr(0, end) + "…";
}

Error exec_failure(int code, const Command& command, const Plan& plan) {
  // A pool's Zygote has none.
  const std::string name = command.argv.empty() ? "the interpreter" : shortened(command.argv[0]);
  if (code == ENOENT)
    return {ErrorKind::not_found, fmt::format("{}: no such command in the box", name), where_commands_are(name, plan),
            code};
  Error error = os_error(fmt::format("{}: cannot be run", name), code);
  error.kind = ErrorKind::not_runnable;
  error.hint = code == ENOEXEC  ? "it is neither a program for this machine nor a script with a #! line"
               : code == EISDIR ? "it is a folder: name a program in it"
               : code == EACCES ? "it is no executable file: chmod +x it, or name its interpreter, as in: sh FILE"
               : code == EAGAIN ? "this user has more processes than may be here: raise the limit, ulimit -u"
               : code == E2BIG  ? "its words and variables are too long: pass them in a file"
                                : "see what it is in the box: pctx-sandbox run -- ls -l FILE";
  return error;
}

// `step` made none of what the policy asks for: a layer by name, or a host name of its own.
Error lacks(Step step, int code, const Plan& plan) {
  const bool uts = step != Step::cgroup_namespace;
  const char* const layer = uts ? "uts" : "cgroup-namespace";
  const char* const what = step == Step::hostname ? "this host refuses to set the box's host name"
                           : uts                  ? "this host refuses a uts namespace"
                                                  : "this host refuses a cgroup namespace";
  const bool named = uts && !plan.policy.require.test(index(Layer::uts));
  const std::string asked = named
                                ? fmt::format("{} {}", plan.policy.names.of("identity.hostname"), plan.policy.hostname)
                                : fmt::format("--require {}", layer);
  Error error = explain_privilege_failure(fmt::format("{}: {}", asked, what), code);
  if (code == ENOSPC)
    error.hint = fmt::format("the host's limit of these is reached: raise /proc/sys/user/max_{}_namespaces",
                             uts ? "uts" : "cgroup");
  error.hint += named ? "; or leave it out" : fmt::format("; or leave --require {} out", layer);
  return error;
}

}  // namespace

void note_lack(const StatusFrame& frame, std::array<LayerState, kLayers.size()>& layers) {
  const auto off = [&](Layer layer, const char* what) {
    layers[index(layer)] = {false, os_error(what, frame.value).what};
  };
  if (frame.step == Step::uts) off(Layer::uts, "this host refuses it");
  if (frame.step == Step::hostname) off(Layer::uts, "new, but its host name cannot be set: it is the host's");
  if (frame.step == Step::cgroup_namespace) off(Layer::cgroup_namespace, "this host refuses it");
}

namespace {

Error describe(const StatusFrame& frame, const Plan& plan, const Command& command) {
  const int code = frame.value;
  const std::size_t at = frame.index;
  const bool refused = code == EPERM || code == EACCES;
  switch (frame.step) {
    case Step::exec:
      return exec_failure(code, command, plan);
    case Step::workdir: {
      if (plan.policy.mnt && plan.policy.workdir.empty() && code == EACCES)
        return usage_error(fmt::format("{} {}: the guest may not enter it: Permission denied",
                                       plan.policy.names.of("files.mnt"), *plan.policy.mnt),
                           "lend a folder that is yours, or open it to its guest: chmod o+rwx DIR");
      Error error = os_error(fmt::format("{} {}", plan.policy.names.of("files.workdir"), plan.workdir), code);
      error.kind = ErrorKind::usage;
      error.hint = "the folder must exist in the box; /tmp and the home folder always do";
      return error;
    }
    case Step::clone_bind:
      if (code == ESTALE)
        return usage_error(fmt::format("{} was replaced while it was being lent", bind_source(plan, at)),
                           "somebody else changes that folder: lend one of your own");
      if (refused)
        return explain_privilege_failure(fmt::format("cannot lend {} to the box", bind_source(plan, at)), code);
      return os_error(fmt::format("cannot lend {} to the box", bind_source(plan, at)), code);
    case Step::verify_device:
      return unavailable(fmt::format("{} is not the device that it should be", bind_source(plan, at)),
                         "something replaced it: compare 'ls -l /dev/null' (1, 3) with this host");
    case Step::namespaces:
      return explain_clone_failure(code);
    case Step::ids:
      return explain_privilege_failure("cannot take the guest's ids", code);
    case Step::root:
    case Step::attach:
      return explain_privilege_failure("cannot make the box's root", code);
    case Step::root_op:
      return place_failure(code, plan, at);
    case Step::proc:
      return explain_proc_failure(code, !plan.watchdog.any());
    case Step::setting:
      return os_error(fmt::format("cannot set {} in the box", setting(plan, at)), code);
    case Step::pivot:
      return os_error("cannot change to the box's root", code);
    case Step::cgroup:
      return os_error("the box cannot enter its cgroup", code);
    case Step::rlimit:
      return os_error(fmt::format("cannot set the limit '{}'", limit(plan, at)), code);
    case Step::apparmor:
      return unavailable(
          fmt::format("the AppArmor profile {} cannot be entered", plan.apparmor),
          plan.apparmor_stack
              ? fmt::format("the profile that confines us must allow it: change_profile -> &{},", plan.apparmor)
              : "load it again: sudo pctx-sandbox setup");
    case Step::landlock:
      return os_error("cannot apply the Landlock rules", code);
    case Step::seccomp:
      if (code == ETOOMANYREFS)
        return unavailable(
            "other processes of this user have more descriptors on their way than this box may have open",
            "raise --files, or let the profile of --seccomp allow prlimit64");
      return os_error("cannot install the system call filter", code);
    case Step::handshake:
      return os_error("the box's first messages failed", code);
    case Step::uts:
    case Step::hostname:
    case Step::cgroup_namespace:
      return lacks(frame.step, code, plan);
    case Step::loopback:
      return os_error("cannot bring up the box's loopback", code);
    case Step::network:
      return os_error(fmt::format("cannot make the box's network (part {})", at), code);
    case Step::init:
      return os_error(fmt::format("cannot start the box's init (part {})", at), code);
    case Step::fork:
      return os_error("cannot start the guest's process", code);
    case Step::terminal:
      return os_error("cannot make the box's terminal", code);
    case Step::descriptors:
      return os_error("cannot arrange the guest's descriptors", code);
    case Step::affinity:
      return os_error("cannot pin the guest to its CPUs", code);
    case Step::keyring:
      return os_error("cannot make a session keyring for the box", code);
    case Step::capabilities:
      return os_error("cannot drop all capabilities", code);
    case Step::no_new_privs:
      return os_error("cannot set no_new_privs", code);
  }
  return os_error("the box could not be made", code);
}

}  // namespace

Error describe_failure(const StatusFrame& frame, const Plan& plan, const Command& command) {
  return with_next_step(describe(frame, plan, command));
}

}  // namespace pctx
