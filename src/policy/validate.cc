#include <array>
#include <set>

#include <fmt/format.h>

#include "policy/policy.h"

namespace pctx {
namespace {

constexpr std::uint64_t kLeastDisk = 64_KiB, kMostDisk = 1ULL << 50;

struct Range {
  std::string_view key;
  std::uint64_t value, least, most, otherwise;
  std::string (*show)(std::uint64_t);
};

std::string show_count(std::uint64_t n) { return fmt::format("{}", n); }
std::string show_cpus(std::uint64_t n) { return format_cpus(static_cast<std::uint32_t>(n)); }

Result<void> check_guest_path(std::string_view what, const std::string& path) {
  if (path.empty() || path.front() != '/')
    return usage_error(fmt::format("{}: '{}' is not an absolute path in the box", what, path),
                       "paths in the box begin with /, for example /data");
  if (path == "/") return {};
  if (path.size() > 1024)
    return usage_error(fmt::format("{}: the path is longer than 1024 bytes", what), "choose a shorter one");
  if (path.find('\0') != std::string::npos)
    return usage_error(fmt::format("{}: the path holds a NUL byte", what), "leave it out: no path has one");
  for (std::string_view rest{path}; !rest.empty();) {
    rest.remove_prefix(1);
    const std::size_t end = rest.find('/');
    const std::string_view part = rest.substr(0, end);
    if (part.empty() || part == "." || part == "..")
      return usage_error(fmt::format("{}: '{}' has an empty, '.' or '..' part", what, path),
                         "write the path in the box without it, and without a slash at its end");
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end);
  }
  return {};
}

// The kernel would take the part before it for the whole.
Result<void> check_host_path(std::string_view what, const std::string& path) {
  if (path.find('\0') == std::string::npos) return {};
  return usage_error(fmt::format("{}: the path holds a NUL byte", what), "leave it out: no path has one");
}

Result<void> check_targets(const Policy& policy) {
  if (policy.seccomp) PCTX_TRY(check_host_path(policy.names.of("seccomp"), *policy.seccomp));
  std::set<std::string> seen;
  if (policy.mnt) {
    PCTX_TRY(check_host_path(policy.names.of("files.mnt"), *policy.mnt));
    seen.insert("/mnt");
  }
  const auto claim = [&](std::string_view what, const std::string& target) -> Result<void> {
    PCTX_TRY(check_guest_path(what, target));
    if (is_reserved(target))
      return usage_error(fmt::format("{}: {} is made by the sandbox itself", what, target),
                         "choose another place in the box, for example /data");
    if (target == "/home")
      return usage_error(fmt::format("{}: {} would hide /home/sandbox, the guest's home", what, target),
                         "choose another place in the box, for example /data, or one folder below it");
    if (!seen.insert(target).second) {
      const std::string& file = policy.names.file;
      const bool adds = !file.empty() && !what.starts_with(file);
      return usage_error(
          fmt::format("{}: {} is given twice{}", what, target, adds ? fmt::format(", with what {} lists", file) : ""),
          "choose another place for one of them");
    }
    return {};
  };
  for (const Bind& bind : policy.binds) {
    const std::string name = policy.names.of(bind.key());
    PCTX_TRY(check_host_path(name, bind.source));
    PCTX_TRY(check_lendable(name, bind.source));
    PCTX_TRY(claim(name, bind.target));
  }
  for (const Tmpfs& tmpfs : policy.tmpfs) {
    const std::string name = policy.names.of("files.tmpfs");
    PCTX_TRY(claim(name, tmpfs.target));
    // The kernel takes 0 for no limit at all.
    if (tmpfs.size < kLeastDisk || tmpfs.size > kMostDisk)
      return usage_error(fmt::format("{}: {}: {} is not between {} and {}", name, tmpfs.target, format_size(tmpfs.size),
                                     format_size(kLeastDisk), format_size(kMostDisk)),
                         fmt::format("leave the size out for {}", format_size(Tmpfs{}.size)));
  }
  if (policy.binds.size() + policy.tmpfs.size() > 256)
    return usage_error("more than 256 --ro, --rw and --tmpfs", "lend a folder that holds several of them");
  return {};
}

Result<void> check_identity(const Policy& policy) {
  if (policy.hostname.empty() || policy.hostname.size() > 63 ||
      policy.hostname.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") !=
          std::string::npos)
    return usage_error(
        fmt::format("{}: '{}' is not a host name", policy.names.of("identity.hostname"), policy.hostname),
        "it has letters, digits, dashes and dots, at most 63 of them");
  PCTX_TRY(named(policy.names.of("identity.uid"), check_uid(policy.uid)));
  std::size_t bytes = 0;
  for (const auto& [name, value] : policy.env) {
    if (name.empty() || name.find_first_of(std::string_view{"=\0", 2}) != std::string::npos ||
        value.find('\0') != std::string::npos)
      return usage_error(fmt::format("{}: the variable '{}' cannot be set", policy.names.of("identity.env"), name),
                         "a name is not empty and has no '='; neither it nor the value has a NUL byte");
    bytes += name.size() + value.size() + 2;
  }
  if (bytes > 128_KiB)
    return usage_error(
        fmt::format("{}: the variables take more than 128 KiB together", policy.names.of("identity.env")),
        "lend large values as a file, with --ro");
  return {};
}

Result<void> check_network(const Policy& policy) {
  const NetworkPolicy& allowed = policy.allowed;
  const std::array<std::pair<const char*, bool>, 4> limits{{{"network.private", !allowed.open_private.empty()},
                                                            {"network.rate", allowed.rate.has_value()},
                                                            {"network.bytes", allowed.bytes.has_value()},
                                                            {"network.connections", allowed.connections.has_value()}}};
  if (policy.network != Network::allow) {
    for (const auto& [key, given] : limits)
      if (given)
        return usage_error(fmt::format("{}: there is no list of hosts that it could be about", policy.names.of(key)),
                           "name them with --network allow:HOST,...");
    return {};
  }
  return validate(allowed, policy.names);
}

}  // namespace

bool is_reserved(std::string_view target) {
  constexpr std::array<std::string_view, 5> kReserved{"/proc", "/dev", "/sys", "/etc", "/tmp"};
  for (std::string_view place : kReserved)
    if (target == place ||
        (place != "/tmp" && place != "/etc" && target.starts_with(place) && target[place.size()] == '/'))
      return true;
  return target == "/";
}

bool is_profile_name(std::string_view name) {
  return !name.empty() && name.size() <= 100 && name.front() != '.' && name.front() != '-' &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string_view::npos;
}

Result<std::uint32_t> check_uid(std::uint64_t uid) {
  if (uid > kMaxUid)
    return usage_error(fmt::format("{} is not below {}", uid, kMaxUid + 1), "0 and 1000 are the usual choices");
  return static_cast<std::uint32_t>(uid);
}

Result<void> check_lendable(std::string_view name, std::string_view path) {
  for (std::string_view refused : {"/", "/proc", "/sys", "/dev", "/run", "/var/run"})
    if (path == refused)
      return usage_error(fmt::format("{}: {} is never lent as a whole", name, path),
                         "lend the files or folders that the guest needs");
  return {};
}

Result<void> validate(const Policy& policy) {
  const Limits& limits = policy.limits;
  const Limits usual;
  const std::array<Range, 7> ranges{{
      {"limits.memory", limits.memory, 4_MiB, 1ULL << 50, usual.memory, format_size},
      {"limits.pids", limits.pids, 1, 4'000'000, usual.pids, show_count},
      {"limits.disk", limits.disk, kLeastDisk, kMostDisk, usual.disk, format_size},
      {"limits.inodes", limits.inodes, 16, 1ULL << 40, usual.inodes, show_count},
      {"limits.output", limits.output, 0, 1ULL << 40, usual.output, format_size},
      {"limits.files", limits.files, 8, 1'000'000, usual.files, show_count},
      {"limits.cpus", limits.cpus, 10, 1'000'000, usual.cpus, show_cpus},
  }};
  const Names& names = policy.names;
  for (const Range& range : ranges)
    if (range.value < range.least || range.value > range.most)
      return usage_error(fmt::format("{}: {} is not between {} and {}", names.of(range.key), range.show(range.value),
                                     range.show(range.least), range.show(range.most)),
                         fmt::format("leave it out for {}", range.show(range.otherwise)));
  if (limits.cpu_time && limits.cpu_time->count() <= 0)
    return usage_error(fmt::format("{}: the time must be above zero", names.of("limits.cpu_time")),
                       "leave it out for no limit");
  for (const auto& [key, rate] : {std::pair{"limits.io_read", limits.io_read}, {"limits.io_write", limits.io_write}})
    if (rate && *rate < 4096)
      return usage_error(fmt::format("{}: the rate is below 4096 bytes per second", names.of(key)),
                         "leave it out for no limit");
  PCTX_TRY(check_targets(policy));
  PCTX_TRY(check_identity(policy));
  PCTX_TRY(check_network(policy));
  if (policy.apparmor && !is_profile_name(*policy.apparmor))
    return usage_error(fmt::format("{}: '{}' is not a profile's name", names.of("apparmor"), *policy.apparmor),
                       "names have letters, digits, dots, dashes and underscores, at most 100 of them");
  if (policy.seccomp && policy.seccomp->empty())
    return usage_error(fmt::format("{}: the path is empty", names.of("seccomp")),
                       "name an OCI profile, or leave it out for the filter of our own");
  if (!policy.workdir.empty()) PCTX_TRY(check_guest_path(names.of("files.workdir"), policy.workdir));
  if (const LayerSet both = policy.require & policy.allow_degraded; both.any())
    for (const LayerInfo& entry : kLayers)
      if (both.test(index(entry.layer)))
        return usage_error(
            fmt::format("{}: '{}' stands in {} too", names.of("require"), entry.name, names.brief("allow_degraded")),
            "leave it out of one of them");
  return {};
}

}  // namespace pctx
