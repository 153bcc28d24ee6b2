#include "sys/host.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>

#include <fmt/format.h>

#include "base/units.h"
#include "sys/apparmor.h"
#include "sys/delegation.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

// What a box may be lent of the system: each is looked for once. Nothing else of the host is ever lent by default.
constexpr std::array kSystemCandidates{
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/lib32",
    "/libx32",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust/extracted",
    "/etc/crypto-policies",
    "/etc/fonts",
    "/etc/mime.types",
    "/etc/manpath.config",
    "/etc/groff",
};

// Debian's Java reads its settings through links from /usr/lib/jvm/java-17-openjdk-amd64 into /etc/java-17-openjdk.
// What is installed says which: /etc holds hundreds of names.
std::vector<std::string> java_settings() {
  constexpr const char* kJava = "/usr/lib/jvm";
  constexpr std::size_t kMost = 8;  // each is a mount
  std::vector<std::string> found;
  DIR* folder = ::opendir(kJava);
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    constexpr std::string_view kKind = "-openjdk-";
    const std::size_t kind = name.find(kKind);
    if (!name.starts_with("java-") || kind == name.npos || entry->d_type == DT_LNK) continue;
    std::string path = fmt::format("/etc/{}", name.substr(0, kind + kKind.size() - 1));
    if (std::ranges::find(found, path) == found.end()) found.push_back(std::move(path));
  }
  ::closedir(folder);
  std::ranges::sort(found);  // whatever order the folder has
  if (found.size() > kMost) found.resize(kMost);
  return found;
}

std::string link_target(const char* path) {
  std::array<char, 4096> buffer;
  const ssize_t length = ::readlink(path, buffer.data(), buffer.size());
  return length > 0 ? std::string{buffer.data(), static_cast<std::size_t>(length)} : std::string{};
}

std::vector<HostPath> probe_system() {
  std::vector<HostPath> found;
  const auto look = [&](const char* path) {
    struct stat status {};
    if (::lstat(path, &status) != 0) return;
    if (S_ISLNK(status.st_mode))
      found.push_back({path, PathKind::link, link_target(path)});
    else if (S_ISDIR(status.st_mode))
      found.push_back({path, PathKind::directory, ""});
    else if (S_ISREG(status.st_mode))
      found.push_back({path, PathKind::file, ""});
  };
  for (const char* path : kSystemCandidates) look(path);
  for (const std::string& path : java_settings()) look(path.c_str());
  return found;
}

// Whoever starts us may have taken from set-id programs what they are for; their mode does not show it.
std::string why_no_set_id() {
  if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
    return "no_new_privs is set for the caller (NoNewPrivileges= of a service, no-new-privileges of a container)";
  for (const int capability : {CAP_SETUID, CAP_SETGID})
    if (::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 0)
      return "CAP_SETUID or CAP_SETGID is out of the caller's bounding set (CapabilityBoundingSet= of a service, "
             "--cap-drop of a container)";
  return "";
}

}  // namespace

std::optional<HostAccount> find_account(uid_t uid) {
  const auto text = sys::try_read_file("/etc/passwd", 4_MiB);
  if (!text) return std::nullopt;
  for (std::string_view line : sys::split(*text, '\n')) {
    const auto fields = sys::split(line, ':');
    if (fields.size() < 4 || fields[2] != std::to_string(uid)) continue;
    const auto gid = parse_count(fields[3]);
    return HostAccount{std::string{fields[0]}, uid, gid ? static_cast<gid_t>(*gid) : static_cast<gid_t>(uid)};
  }
  return std::nullopt;
}

std::optional<IdRange> subordinate_range(const char* file, const HostAccount& account) {
  const auto text = sys::try_read_file(file, 1_MiB);
  if (!text) return std::nullopt;
  for (std::string_view line : sys::split(*text, '\n')) {
    const auto fields = sys::split(line, ':');
    if (fields.size() != 3 || (fields[0] != account.name && fields[0] != std::to_string(account.uid))) continue;
    const auto start = parse_count(fields[1]);
    const auto count = parse_count(fields[2]);
    if (start && count && *count > 0 && *start + *count < UINT32_MAX)
      return IdRange{static_cast<std::uint32_t>(*start), static_cast<std::uint32_t>(*count)};
  }
  return std::nullopt;
}

std::uint32_t free_subordinate_id() {
  constexpr std::uint64_t kFirst = 100000, kEach = 65536;  // as useradd has them
  std::uint64_t end = kFirst;
  for (const char* file : {"/etc/subuid", "/etc/subgid"}) {
    const std::string text = sys::try_read_file(file, 1_MiB).value_or("");
    for (std::string_view line : sys::split(text, '\n')) {
      const auto fields = sys::split(line, ':');
      if (fields.size() != 3) continue;
      const auto start = parse_count(fields[1]), count = parse_count(fields[2]);
      if (start && count && *count > 0 && *start + *count < INT_MAX - kEach) end = std::max(end, *start + *count);
    }
  }
  return static_cast<std::uint32_t>(kFirst + (end - kFirst + kEach - 1) / kEach * kEach);
}

namespace {

// The ids that our own user namespace can name: a container often has only 65536 of them.
std::uint64_t mapped_ids_end() {
  const auto text = sys::try_read_file("/proc/self/uid_map");
  std::uint64_t end = 0;
  if (!text) return end;
  // Three numbers in each line.
  for (const char* at = text->c_str();;) {
    char* next = nullptr;
    const unsigned long inside = std::strtoul(at, &next, 10);
    (void)std::strtoul(next, &next, 10);
    const unsigned long count = std::strtoul(next, &next, 10);
    if (next == at) return end;
    end = std::max<std::uint64_t>(end, inside + count);
    at = next;
  }
}

// Blanks, backslashes and line ends are octal in the kernel's list of mounts.
std::string without_octal(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Fifth field of each line.
std::vector<std::string> mount_points() {
  std::vector<std::string> points;
  const auto table = sys::try_read_file("/proc/self/mountinfo", 4_MiB);
  if (!table) return points;
  for (std::string_view line : sys::split(*table, '\n'))
    if (const auto fields = sys::split(line, ' '); fields.size() > 4) points.push_back(without_octal(fields[4]));
  return points;
}

bool has_admin_capability() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  constexpr std::uint32_t kNeeded = (1U << CAP_SYS_ADMIN) | (1U << CAP_SETUID) | (1U << CAP_SETGID);
  return (data[0].effective & kNeeded) == kNeeded;
}

bool may_make_cgroups(const std::string& directory) {
  return ::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

std::string v1_directory(const std::string& table, const char* controller) {
  const std::string mount = fmt::format("/sys/fs/cgroup/{}", controller);
  // Without a cgroup namespace a container's own path does not exist below its mount: then the mount is our own.
  for (const std::string& candidate : {mount + cgroup_in(table, controller), mount})
    if (may_make_cgroups(candidate)) return candidate;
  return "";
}

bool has_controllers(const std::string& text, CgroupHost& host) {
  host.cpu_controller = sys::has_word(text, "cpu");
  host.io_controller = sys::has_word(text, "io");
  return sys::has_word(text, "memory") && sys::has_word(text, "pids");
}

void probe_v2(CgroupHost& host, bool privileged, const std::string& table) {
  const std::string path = cgroup_in(table, "");
  const std::string own = "/sys/fs/cgroup" + path;
  // The root of the hierarchy may hold processes and children both; only root may write there. In a container the
  // root of the mount is an ordinary cgroup, has cgroup.type, and its processes forbid controllers below it.
  const auto root_children = sys::try_read_file("/sys/fs/cgroup/cgroup.subtree_control");
  if (privileged && may_make_cgroups("/sys/fs/cgroup") && root_children) {
    const bool real_root = ::access("/sys/fs/cgroup/cgroup.type", F_OK) != 0;
    const auto available = sys::try_read_file("/sys/fs/cgroup/cgroup.controllers");
    if (has_controllers(real_root && available ? *available : *root_children, host)) {
      host.version = CgroupVersion::v2;
      host.unified = "/sys/fs/cgroup";
      return;
    }
  }
  if (const std::size_t slash = own.rfind('/'); own.substr(slash + 1) == kOwnLeaf) {
    // We have settled here before, or whoever started us has.
    const std::string scope = own.substr(0, slash);
    const auto enabled = sys::try_read_file(scope + "/cgroup.subtree_control");
    if (enabled && has_controllers(*enabled, host) && may_make_cgroups(scope) && is_delegated("/sys/fs/cgroup", path)) {
      host.version = CgroupVersion::v2;
      host.unified = scope;
      return;
    }
  }
  const auto controllers = sys::try_read_file(own + "/cgroup.controllers");
  const bool writable = controllers && has_controllers(*controllers, host) && may_make_cgroups(own) &&
                        ::faccessat(AT_FDCWD, (own + "/cgroup.subtree_control").c_str(), W_OK, AT_EACCESS) == 0;
  const bool delegated = writable && is_delegated("/sys/fs/cgroup", path);
  if (delegated) {
    const auto processes = sys::try_read_file(own + "/cgroup.procs");
    // Alone in a delegated cgroup, or among our own, we may rearrange it; with company (a shell, a container's init) we
    // must not.
    if (processes && (sys::split(*processes, '\n').size() == 1 || std::getenv(kScopeMark) != nullptr)) {
      host.version = CgroupVersion::v2;
      host.unified = own;
      host.own_scope = true;
      return;
    }
  }
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (!privileged && runtime != nullptr && ::access(fmt::format("{}/systemd/private", runtime).c_str(), F_OK) == 0 &&
      ::access("/usr/bin/systemd-run", X_OK) == 0) {
    host.ask_systemd = true;
  }
  host.why_none = privileged ? "the cgroup file system is read-only or its controllers are not enabled for us"
                  : writable && !delegated ? "the unit of systemd that holds us is not delegated (Delegate=yes)"
                                           : "no cgroup is delegated to this user";
}

// The one variable of the caller's that a guest gets: a zone that anybody can look up, never a path (where the caller
// lives) or other words.
bool is_zone(std::string_view name) {
  if (name.empty() || name.size() > 64 || name.front() == '/' || name.find("..") != name.npos) return false;
  struct stat status {};
  return ::stat(fmt::format("/usr/share/zoneinfo/{}", name).c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_privileged() { return ::geteuid() == 0 && has_admin_capability(); }

}  // namespace

std::vector<std::string> disks() {
  std::vector<std::string> found;
  DIR* blocks = ::opendir("/sys/block");
  if (blocks == nullptr) return found;
  while (const dirent* entry = ::readdir(blocks)) {
    if (entry->d_name[0] == '.') continue;
    const auto size = sys::try_read_file(fmt::format("/sys/block/{}/size", entry->d_name), 64);
    if (size && *size != "0\n") found.emplace_back(entry->d_name);
  }
  ::closedir(blocks);
  std::sort(found.begin(), found.end());
  return found;
}

std::string cgroup_in(const std::string& table, std::string_view controller) {
  for (std::string_view line : sys::split(table, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view names = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? names.empty() : false) return std::string{line.substr(second + 1)};
    for (std::string_view name : sys::split(names, ','))
      if (name == controller) return std::string{line.substr(second + 1)};
  }
  return "/";
}

CgroupHost probe_cgroups() {
  const bool privileged = is_privileged();
  CgroupHost host;
  if (::access("/sys/fs/cgroup", F_OK) != 0) {
    host.why_none = "/sys/fs/cgroup is not there";
    return host;
  }
  const std::string table = sys::try_read_file("/proc/self/cgroup").value_or("");
  if (has_unified_cgroups()) {
    probe_v2(host, privileged, table);
    return host;
  }
  host.memory = v1_directory(table, "memory");
  host.pids = v1_directory(table, "pids");
  host.cpu = v1_directory(table, "cpu");
  host.cpuacct = v1_directory(table, "cpuacct");
  if (host.memory.empty() || host.pids.empty() || host.cpu.empty()) {
    host.why_none = privileged ? "the memory, pids or cpu controller of cgroup v1 is missing or read-only"
                               : "cgroup v1 cannot be delegated to this user";
    return host;
  }
  host.version = CgroupVersion::v1;
  host.cpu_controller = true;
  host.memsw = ::access((host.memory + "/memory.memsw.limit_in_bytes").c_str(), F_OK) == 0;
  return host;
}

HostFeatures probe_host(const CgroupHost* known) {
  HostFeatures host;
  host.uid = ::geteuid();
  host.gid = ::getegid();
  host.privileged = is_privileged();
  utsname name{};
  if (::uname(&name) == 0) {
    host.kernel = name.release;
    char* point = nullptr;
    host.kernel_major = static_cast<int>(std::strtol(name.release, &point, 10));
    if (*point == '.') host.kernel_minor = static_cast<int>(std::strtol(point + 1, nullptr, 10));
  }
  host.landlock_abi = std::max(0, abi::landlock_create_ruleset(nullptr, 0, 1 /* VERSION */));
  host.apparmor = sys::kernel_has_apparmor();
  if (host.apparmor) {
    const auto guest = sys::profile_mode(kGuestProfile), zygote = sys::profile_mode(kZygoteProfile);
    host.apparmor_profile = guest && zygote;
    if (host.apparmor_profile) host.apparmor_mode = *guest == "enforce" ? *zygote : *guest;
    host.launch_profile = sys::profile_mode(kLaunchProfile).has_value();
    host.confined_by = sys::own_profile();
  }
  host.cgroup = known != nullptr ? *known : probe_cgroups();
  host.id_helpers = ::access("/usr/bin/newuidmap", X_OK) == 0 && ::access("/usr/bin/newgidmap", X_OK) == 0;
  if (host.privileged) {
    // Above the ids that systemd hands to containers (up to 0x6fffffff) nothing is allotted; where a container has
    // fewer ids, its last ones below nobody.
    constexpr std::uint32_t kUnallotted = 0x70000000;
    const std::uint64_t end = mapped_ids_end();
    host.first_free_id = end > kUnallotted + 0x1000000ULL ? kUnallotted : end > 65000 ? 64000 : 0;
    if (host.first_free_id == 0) host.privileged = false;
  } else {
    const HostAccount account = find_account(host.uid).value_or(HostAccount{"", host.uid, host.gid});
    host.subuid = subordinate_range("/etc/subuid", account);
    host.subgid = subordinate_range("/etc/subgid", account);
    const char* own = std::getenv(kOwnUidVariable);
    host.own_uid = own != nullptr ? own : "";
    host.no_set_id = why_no_set_id();
  }
  host.system = probe_system();
  if (!host.kernel_at_least(5, 12)) host.mount_points = mount_points();
  for (const char* place : {"/tmp", "/mnt", "/var", "/run"})
    if (host.attach_point.empty() && ::access(place, F_OK) == 0) host.attach_point = place;
  if (const char* zone = std::getenv("TZ"); zone != nullptr && is_zone(zone)) host.timezone = zone;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) host.cpus = static_cast<unsigned>(CPU_COUNT(&allowed));
  if (rlimit files{}; ::getrlimit(RLIMIT_NOFILE, &files) == 0) host.files = files.rlim_max;
  return host;
}

}  // namespace pctx
