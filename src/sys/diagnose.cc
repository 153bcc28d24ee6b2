#include "sys/diagnose.h"

#include <unistd.h>

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx {
namespace {

bool is_zero(const char* path) {
  const auto value = sys::try_read_file(path);
  return value && value->starts_with("0\n");
}

constexpr const char* kDockerFix =
    "in Docker: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
    "systempaths=unconfined IMAGE …";

}  // namespace

bool in_container() {
  return ::access("/.dockerenv", F_OK) == 0 || ::access("/run/.containerenv", F_OK) == 0 ||
         ::access("/var/run/secrets/kubernetes.io", F_OK) == 0;
}

bool apparmor_restricts_namespaces() {
  const auto value = sys::try_read_file("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
  return value && value->starts_with("1");
}

Error explain_clone_failure(int code) {
  Error error = os_error("this host refuses to make the box's namespaces", code);
  error.kind = ErrorKind::unavailable;
  if (code == ENOSPC && is_zero("/proc/sys/user/max_user_namespaces"))
    error.hint = "user namespaces are switched off: sudo sysctl -w user.max_user_namespaces=15000";
  else if (code == ENOSPC)
    error.hint = "the host's limit of namespaces is reached: raise /proc/sys/user/max_*_namespaces";
  else if (code == EPERM && is_zero("/proc/sys/kernel/unprivileged_userns_clone"))
    error.hint = "unprivileged user namespaces are switched off: sudo sysctl -w kernel.unprivileged_userns_clone=1";
  else if (code == EPERM && in_container())
    error.hint = kDockerFix;
  else if (code == EAGAIN)
    error.hint = "this user's process limit is reached (ulimit -u), or its pids cgroup is full";
  else
    error.hint = "run 'pctx-sandbox doctor': it names what is missing and the command that fixes it";
  return error;
}

Error explain_privilege_failure(std::string what, int code) {
  Error error = os_error(std::move(what), code);
  error.kind = ErrorKind::unavailable;
  if (apparmor_restricts_namespaces())
    error.hint = "AppArmor restricts user namespaces on this host: load our profile once with 'sudo pctx-sandbox setup'";
  else if (in_container())
    error.hint = kDockerFix;
  else
    error.hint = "run 'pctx-sandbox doctor': it names what is missing and the command that fixes it";
  return error;
}

Error explain_proc_failure(int code) {
  Error error = os_error("this host refuses a new /proc for the box", code);
  error.kind = ErrorKind::unavailable;
  error.hint = in_container()
                   ? std::string{"parts of the container's /proc are masked: start it with --security-opt "
                                 "systempaths=unconfined (Docker) or --security-opt unmask=ALL (Podman), or accept a box "
                                 "without /proc with --allow-degraded proc"}
                   : std::string{"something is mounted over parts of /proc: see 'grep /proc/ /proc/self/mountinfo', or "
                                 "accept a box without /proc with --allow-degraded proc"};
  return error;
}

}  // namespace pctx
