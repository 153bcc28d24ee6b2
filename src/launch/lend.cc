#include "launch/lend.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "launch/probe.h"
#include "plan/oci_profile.h"
#include "sys/apparmor.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx {

namespace {

// Whoever may write above it may have put a link there since.
bool stat_without_links(const char* path, struct stat& status) {
  const Fd there{abi::openat2(AT_FDCWD, path, {O_PATH | O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS})};
  return there && ::fstat(there.get(), &status) == 0;
}

bool is_without_links(const char* path, const struct stat& found) {
  struct stat status {};
  return stat_without_links(path, status) && status.st_dev == found.st_dev && status.st_ino == found.st_ino;
}

}  // namespace

Result<LentPath> look_at(const std::string& name, const std::string& path, bool as_is) {
  std::array<char, PATH_MAX> resolved;
  struct stat status {};
  if (path.empty())
    return usage_error(fmt::format("{}: the path is empty", name), "name a file or folder of this host");
  if (::realpath(path.c_str(), resolved.data()) == nullptr || !stat_without_links(resolved.data(), status)) {
    return sys::about_path(name, os_error(path));
  }
  if (as_is && !is_without_links(path.c_str(), status))
    return usage_error(fmt::format("{}: {} leads through a link", name, path),
                       "if nobody has replaced it, name what it leads to, or use 'ro'");
  LentPath lent{resolved.data(),        S_ISDIR(status.st_mode), status.st_uid, status.st_gid,
                status.st_mode & 07777, status.st_ino,           status.st_dev};
  if (!lent.directory && !S_ISREG(status.st_mode))
    return usage_error(fmt::format("{}: {} is neither a file nor a folder", name, path),
                       "sockets and devices are never lent: a read-only mount does not stop connect() or ioctl()");
  PCTX_TRY(check_lendable(name, lent.path));
  return lent;
}

std::vector<std::string> lent_writable(const Policy& policy) {
  std::vector<std::string> writable;
  if (policy.mnt) writable.push_back(sys::resolved(*policy.mnt));
  for (const Bind& bind : policy.binds)
    if (bind.writable) writable.push_back(sys::resolved(bind.source));
  std::erase(writable, "");
  return writable;
}

Result<void> check_stays(const Policy& policy, const std::string& name, const std::string& given,
                         const std::string& found) {
  for (const std::string& folder : lent_writable(policy))
    if (!sys::is_at_or_inside(found, folder) && sys::leads_through(given, folder))
      return usage_error(fmt::format("{}: a link leads {} out of {}, which is lent to be written", name, given, folder),
                         "a guest may have made it: if you trust it, name what it leads to");
  return {};
}

Result<Plan> compile_here(Policy& policy, CompileInputs inputs, const CgroupHost* cgroups) {
  PCTX_TRY(validate(policy));
  inputs.instance = static_cast<std::uint32_t>(::getpid());
  if (policy.mnt) {
    inputs.mnt = PCTX_TRY(look_at(policy.names.of("files.mnt"), *policy.mnt));
    if (!inputs.mnt->directory)
      return usage_error(fmt::format("{}: {} is not a folder", policy.names.of("files.mnt"), *policy.mnt),
                         "lend a file with --ro or --rw");
    PCTX_TRY(check_stays(policy, policy.names.of("files.mnt"), *policy.mnt, inputs.mnt->path));
    policy.mnt = inputs.mnt->path;
  }
  for (const Bind& bind : policy.binds) {
    const std::string name = policy.names.of(bind.key());
    inputs.binds.push_back(PCTX_TRY(look_at(name, bind.source, bind.as_is)));
    if (!bind.as_is) PCTX_TRY(check_stays(policy, name, bind.source, inputs.binds.back().path));
  }
  if (policy.seccomp)
    inputs.seccomp_profile = PCTX_TRY(sys::read_named(policy.names.of("seccomp"), *policy.seccomp, kMaxProfileBytes));
  if (policy.apparmor) {
    inputs.profile_mode = sys::profile_mode(inputs.pool ? zygote_profile(policy) : *policy.apparmor);
    inputs.launch_profile = sys::profile_mode(launch_profile(policy)).has_value();
  }
  inputs.no_listener = listener_is_taken();
  const HostFeatures host = probe_host(cgroups);
  LayerSet asked = policy.allow_degraded;
  // A box tells what it had to be without; of Workers, which are made alike, it is known before.
  if (inputs.pool) asked.set(index(Layer::uts)).set(index(Layer::cgroup_namespace));
  if (asked.any()) inputs.missing = probe_missing(asked, host);
  return compile(policy, host, inputs);
}

}  // namespace pctx
