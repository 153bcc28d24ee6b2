#include "launch/facts.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include <fmt/format.h>

#include "base/units.h"
#include "sys/apparmor.h"
#include "sys/delegation.h"
#include "sys/diagnose.h"
#include "sys/files.h"

namespace pctx {
namespace {

constexpr uid_t kNobody = 65534;

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }
bool is_program(const char* path) { return ::access(path, X_OK) == 0; }

std::string first_line(const std::string& path) {
  const std::string text = sys::try_read_file(path).value_or("");
  return text.substr(0, text.find_first_of(std::string_view{"\n\0", 2}));
}

std::optional<long> kernel_setting(const char* path) {
  const std::string text = first_line(path);
  if (text.empty()) return std::nullopt;
  return std::strtol(text.c_str(), nullptr, 10);
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list;
  for (std::string_view word : sys::split(text, ' '))
    if (!word.empty()) list.emplace_back(word);
  return list;
}

bool proc_is_masked() {
  const auto mounts = sys::try_read_file("/proc/self/mountinfo", 4_MiB);
  if (!mounts) return false;
  for (std::string_view line : sys::split(*mounts, '\n')) {
    const auto fields = sys::split(line, ' ');
    if (fields.size() > 4 && fields[4].starts_with("/proc/")) return true;
  }
  return false;
}

CgroupVersion mounted_cgroups() {
  if (has_unified_cgroups()) return CgroupVersion::v2;
  return exists("/sys/fs/cgroup/memory") || exists("/sys/fs/cgroup/pids") ? CgroupVersion::v1 : CgroupVersion::none;
}

std::vector<std::string> lent_controllers(const HostFeatures& host) {
  const CgroupHost& cgroup = host.cgroup;
  if (cgroup.version == CgroupVersion::v2) return words(first_line(cgroup.unified + "/cgroup.controllers"));
  std::vector<std::string> list;
  for (const auto& [directory, controller] :
       {std::pair{&cgroup.memory, "memory"}, {&cgroup.pids, "pids"}, {&cgroup.cpu, "cpu"}})
    if (!directory->empty()) list.emplace_back(controller);
  if (!list.empty() || cgroup.version == CgroupVersion::v1) return list;
  return words(first_line(
      fmt::format("/sys/fs/cgroup/user.slice/user-{0}.slice/user@{0}.service/cgroup.controllers", host.uid)));
}

PackageManager package_manager() {
  if (is_program("/usr/bin/apt-get")) return PackageManager::apt;
  if (is_program("/usr/bin/dnf")) return PackageManager::dnf;
  if (is_program("/usr/bin/pacman")) return PackageManager::pacman;
  return PackageManager::none;
}

std::string own_path() {
  std::array<char, PATH_MAX> buffer;
  const ssize_t length = ::readlink("/proc/self/exe", buffer.data(), buffer.size());
  return length > 0 ? std::string{buffer.data(), static_cast<std::size_t>(length)} : std::string{};
}

using Probed = std::array<ProbedLayer, kLayers.size()>;

Probed probe_layers(const HostFeatures& host) {
  Probed probed;
  for (const LayerInfo& entry : kLayers) probed[index(entry.layer)] = probe_layer(entry.layer, host);
  return probed;
}

// In a child that has become this user; the answers come back through a pipe.
std::optional<Probed> probe_layers_as(const HostAccount& user, const HostFeatures& host) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const Fd read_end{ends[0]}, write_end{ends[1]};
  const pid_t pid = ::fork();
  if (pid < 0) return std::nullopt;
  if (pid == 0) {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(user.gid, user.gid, user.gid) != 0 ||
        ::setresuid(user.uid, user.uid, user.uid) != 0)
      ::_exit(1);
    const Probed probed = probe_layers(host);
    ::_exit(::write(write_end.get(), probed.data(), sizeof probed) == sizeof probed ? 0 : 1);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  Probed probed;
  if (status != 0 || ::read(read_end.get(), probed.data(), sizeof probed) != sizeof probed) return std::nullopt;
  return probed;
}

void add_user(HostFacts& facts, const HostAccount& user) {
  facts.user = user.name;
  facts.host.subuid = subordinate_range("/etc/subuid", user);
  facts.host.subgid = subordinate_range("/etc/subgid", user);
  facts.free_subordinate_id = pctx::free_subordinate_id();
}

}  // namespace

HostFacts gather_facts() {
  HostFacts facts;
  facts.host = probe_host();
  facts.layers = probe_layers(facts.host);
  if (facts.works(Layer::user) && !maps_own_id(facts.host)) {
    facts.maps_own_id = false;
    facts.layers[index(Layer::user)] = {false, EPERM};
  }
  facts.container = container_kind();
  facts.max_user_namespaces = kernel_setting("/proc/sys/user/max_user_namespaces");
  facts.userns_clone = kernel_setting("/proc/sys/kernel/unprivileged_userns_clone");
  facts.apparmor_restricts_userns = kernel_setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
  facts.proc_masked = proc_is_masked();
  facts.lsm = first_line("/sys/kernel/security/lsm");
  if (const auto enforce = kernel_setting("/sys/fs/selinux/enforce")) facts.selinux_enforces = *enforce != 0;
  facts.own_profile = facts.host.confined_by;
  // All that the one file holds, which an older program may have written.
  facts.guest_profile =
      facts.host.apparmor_profile && facts.host.launch_profile && sys::profile_mode(kContainerProfile).has_value();
  facts.launcher_profile = sys::try_read_file("/etc/apparmor.d/pctx-sandbox").value_or("");
  facts.apparmor_parser = is_program("/usr/sbin/apparmor_parser") || is_program("/sbin/apparmor_parser");
  facts.cgroups = mounted_cgroups();
  facts.controllers = lent_controllers(facts.host);
  facts.systemd = exists("/run/systemd/system");
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  facts.user_manager = runtime != nullptr && exists(fmt::format("{}/systemd/private", runtime));
  facts.packages = package_manager();
  facts.program = own_path();
  if (const auto self = find_account(facts.host.uid)) {
    if (!facts.host.privileged) add_user(facts, *self);
    facts.user = self->name;
  }
  return facts;
}

std::optional<HostFacts> gather_user_facts(const HostFacts& own) {
  if (own.host.uid != 0) return std::nullopt;
  std::optional<HostAccount> behind;
  if (const char* text = std::getenv("SUDO_UID"); text != nullptr)
    if (const auto uid = parse_count(text); uid && *uid > 0 && *uid < kNobody)
      behind = find_account(static_cast<uid_t>(*uid));
  const HostAccount user = behind.value_or(HostAccount{"", kNobody, kNobody});
  HostFacts facts = own;
  facts.user.clear();
  facts.host.privileged = false;
  facts.host.first_free_id = 0;
  facts.host.uid = user.uid;
  facts.host.gid = user.gid;
  facts.any_user = !behind;
  facts.maps_own_id = true;
  if (behind) add_user(facts, user);
  facts.user_manager = exists(fmt::format("/run/user/{}/systemd/private", user.uid));
  facts.host.cgroup = {};
  facts.host.cgroup.ask_systemd =
      facts.cgroups == CgroupVersion::v2 && facts.user_manager && is_program("/usr/bin/systemd-run");
  facts.controllers = lent_controllers(facts.host);
  const auto probed = probe_layers_as(user, facts.host);
  if (!probed) return std::nullopt;
  facts.layers = *probed;
  return facts;
}

}  // namespace pctx
