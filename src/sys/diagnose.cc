#include "sys/diagnose.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx {
namespace {

bool is_zero(const char* path) {
  const auto value = sys::try_read_file(path);
  return value && value->starts_with("0\n");
}

constexpr const char* kContainerFix =
    "this container refuses what a box needs: run 'pctx-sandbox doctor' in it, which names the options to start it "
    "with "
    "(Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
    "systempaths=unconfined)";

constexpr const char* kAppArmorFix =
    "AppArmor restricts user namespaces on this host: load our profile once with 'sudo pctx-sandbox setup'";

// The inode numbers of the kernel's first namespaces never change (proc_ns.h). Virtual machines are made from images
// too, and keep their marker files.
bool in_first_namespaces() {
  constexpr std::array<std::pair<const char*, ino_t>, 3> kFirst{
      {{"/proc/self/ns/pid", 0xEFFFFFFC}, {"/proc/self/ns/uts", 0xEFFFFFFE}, {"/proc/self/ns/ipc", 0xEFFFFFFF}}};
  for (const auto& [path, number] : kFirst) {
    struct stat status {};
    if (::stat(path, &status) != 0 || status.st_ino != number) return false;
  }
  return true;
}

// Not for want of rights: whoever has them runs out too.
bool ran_out(int code) { return code == EMFILE || code == ENFILE || code == ENOMEM; }

}  // namespace

Container container_kind() {
  if (in_first_namespaces()) return Container::none;
  // Kubernetes first: its containers may look like Docker's too, and are configured elsewhere.
  if (::access("/var/run/secrets/kubernetes.io", F_OK) == 0 || std::getenv("KUBERNETES_SERVICE_HOST") != nullptr)
    return Container::kubernetes;
  if (::access("/run/.containerenv", F_OK) == 0) return Container::podman;
  if (::access("/.dockerenv", F_OK) == 0) return Container::docker;
  return std::getenv("container") != nullptr ? Container::other : Container::none;
}

bool in_container() { return container_kind() != Container::none; }

bool apparmor_restricts_namespaces() {
  const auto value = sys::try_read_file("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
  return value && value->starts_with("1");
}

Error explain_clone_failure(int code) {
  if (ran_out(code)) return with_next_step(os_error("cannot make the box's namespaces", code));
  Error error = os_error("this host refuses to make the box's namespaces", code);
  error.kind = ErrorKind::unavailable;
  if (code == ENOSPC && is_zero("/proc/sys/user/max_user_namespaces"))
    error.hint = "user namespaces are switched off: sudo sysctl -w user.max_user_namespaces=15000";
  else if (code == ENOSPC)
    error.hint = "the host's limit of namespaces is reached: raise /proc/sys/user/max_*_namespaces";
  else if (code == EPERM && is_zero("/proc/sys/kernel/unprivileged_userns_clone"))
    error.hint = "unprivileged user namespaces are switched off: sudo sysctl -w kernel.unprivileged_userns_clone=1";
  else if ((code == EPERM || code == EACCES) && ::geteuid() != 0 && apparmor_restricts_namespaces())
    error.hint = kAppArmorFix;
  else if ((code == EPERM || code == ENOSYS) && in_container())  // the default filters answer ENOSYS for clone3
    error.hint = kContainerFix;
  else if (code == EAGAIN)
    error.hint = "this user's process limit is reached (ulimit -u), or its pids cgroup is full";
  else
    error.hint = "run 'pctx-sandbox doctor': it names what is missing and the command that fixes it";
  return error;
}

Error explain_privilege_failure(std::string what, int code) {
  Error error = os_error(std::move(what), code);
  if (ran_out(code)) return with_next_step(std::move(error));
  error.kind = ErrorKind::unavailable;
  if (apparmor_restricts_namespaces())
    error.hint = kAppArmorFix;
  else if (in_container())
    error.hint = kContainerFix;
  else
    error.hint = "run 'pctx-sandbox doctor': it names what is missing and the command that fixes it";
  return error;
}

Error with_next_step(Error error) {
  if (!error.hint.empty()) return error;
  switch (error.code) {
    case EMFILE:
      error.hint = "too few files may be open at once here: raise the limit first, for example with 'ulimit -n 1024'";
      break;
    case ETOOMANYREFS:
      error.hint =
          "other processes of this user have more descriptors on their way than may be open here: raise the limit, "
          "for example with 'ulimit -n 1024'";
      break;
    case ENFILE:
      error.hint = "the host has too many files open: raise /proc/sys/fs/file-max";
      break;
    case EAGAIN:
      error.hint = "this user's process limit is reached (ulimit -u), or its pids cgroup is full";
      break;
    case ENOMEM:
      error.hint = "this host, or the cgroup that we run in, has no memory left: end something, or raise its limit";
      break;
    case EBADF:
      error.hint = "it is closed, or open for the other direction: let it go somewhere, for example > /dev/null";
      break;
    case EPIPE:
      error.hint = "whoever was to read it has ended";
      break;
    case EFBIG:
      error.hint =
          "the limit on the size of files is too low here: raise it first, for example with 'ulimit -f unlimited'";
      break;
    case ENOSPC:
    case EDQUOT:
      error.hint = "the disk or a limit of the kernel's is full: make room";
      break;
    default:
      error.hint = "'pctx-sandbox doctor' says what this host lacks";
  }
  return error;
}

Error explain_proc_failure(int code, bool may_do_without) {
  if (ran_out(code)) return with_next_step(os_error("cannot make the box's /proc", code));
  Error error = os_error("this host refuses a new /proc for the box", code);
  error.kind = ErrorKind::unavailable;
  error.hint = in_container()
                   ? std::string{"parts of the container's /proc are masked: start it with --security-opt "
                                 "systempaths=unconfined (Docker) or --security-opt unmask=ALL (Podman)"}
                   : std::string{"something is mounted over parts of /proc: see 'grep /proc/ /proc/self/mountinfo'"};
  if (may_do_without) error.hint += ", or accept a box without /proc with --allow-degraded proc";
  return error;
}

}  // namespace pctx
