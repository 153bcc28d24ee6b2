#include "sys/delegation.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#include <array>
#include <cstdlib>

namespace pctx {
namespace {

bool is_unit(std::string_view name) { return name.ends_with(".service") || name.ends_with(".scope"); }

}  // namespace

bool has_unified_cgroups() {
  struct statfs type {};
  return ::statfs("/sys/fs/cgroup", &type) == 0 && type.f_type == CGROUP2_SUPER_MAGIC;
}

std::string_view unit_of(std::string_view cgroup) {
  while (!cgroup.empty()) {
    const std::size_t slash = cgroup.rfind('/');
    if (is_unit(cgroup.substr(slash == std::string_view::npos ? 0 : slash + 1))) return cgroup;
    cgroup = slash == std::string_view::npos ? std::string_view{} : cgroup.substr(0, slash);
  }
  return cgroup;
}

bool is_delegated(std::string_view directory, std::string_view cgroup) {
  if (std::getenv(kScopeMark) != nullptr) return true;
  const std::string_view unit = unit_of(cgroup);
  // Made by something else than systemd (a container's runtime, an administrator): then permissions are the whole
  // truth.
  if (unit.empty()) return true;
  // systemd 251 and later say so. Earlier ones mark a user's units in no way that the user can read: these count as not
  // delegated, and a scope of our own costs a few milliseconds where trusting wrongly would cost the caller's service.
  std::array<char, 8> value{};
  const std::string path = std::string{directory} + std::string{unit};
  return ::getxattr(path.c_str(), "user.delegate", value.data(), value.size()) == 1 && value[0] == '1';
}

}  // namespace pctx
