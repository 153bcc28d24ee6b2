#include <array>
#include <set>

#include <fmt/format.h>

#include "policy/policy.h"

namespace pctx {
namespace {

struct Range {
  std::string_view name;
  std::uint64_t value, least, most;
};

Result<void> check_guest_path(std::string_view what, const std::string& path) {
  if (path.empty() || path.front() != '/')
    return usage_error(fmt::format("{}: '{}' is not an absolute path in the box", what, path),
                       "paths in the box begin with /, for example /data");
  if (path == "/") return {};
  if (path.size() > 1024) return usage_error(fmt::format("{}: the path is longer than 1024 bytes", what));
  if (path.find('\0') != std::string::npos) return usage_error(fmt::format("{}: the path holds a NUL byte", what));
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

// Places that the engine itself fills: something lent over them would undo a layer.
bool is_reserved(std::string_view target) {
  constexpr std::array<std::string_view, 5> kReserved{"/proc", "/dev", "/sys", "/etc", "/tmp"};
  for (std::string_view place : kReserved)
    if (target == place ||
        (place != "/tmp" && place != "/etc" && target.starts_with(place) && target[place.size()] == '/'))
      return true;
  return target == "/";
}

Result<void> check_targets(const Policy& policy) {
  std::set<std::string> seen;
  if (policy.mnt) seen.insert("/mnt");
  const auto claim = [&](std::string_view what, const std::string& target) -> Result<void> {
    PCTX_TRY(check_guest_path(what, target));
    if (is_reserved(target))
      return usage_error(fmt::format("{}: {} is made by the sandbox itself", what, target),
                         "choose another place in the box, for example /data");
    if (!seen.insert(target).second) return usage_error(fmt::format("{}: {} is given twice", what, target));
    return {};
  };
  for (const Bind& bind : policy.binds) {
    const char* option = bind.writable ? "--rw" : "--ro";
    PCTX_TRY(check_lendable(option, bind.source));
    PCTX_TRY(claim(option, bind.target));
  }
  for (const Tmpfs& tmpfs : policy.tmpfs) PCTX_TRY(claim("--tmpfs", tmpfs.target));
  if (policy.binds.size() + policy.tmpfs.size() > 256) return usage_error("more than 256 --ro, --rw and --tmpfs");
  return {};
}

Result<void> check_identity(const Policy& policy) {
  if (policy.hostname.empty() || policy.hostname.size() > 63 ||
      policy.hostname.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") !=
          std::string::npos)
    return usage_error(fmt::format("--hostname: '{}' is not a host name of at most 63 characters", policy.hostname));
  if (policy.uid > 65533)
    return usage_error(fmt::format("--uid: {} is not below 65534", policy.uid), "0 and 1000 are the usual choices");
  std::size_t bytes = 0;
  for (const auto& [name, value] : policy.env) {
    if (name.empty() || name.find_first_of(std::string_view{"=\0", 2}) != std::string::npos ||
        value.find('\0') != std::string::npos)
      return usage_error(fmt::format("--env: '{}' is not a variable name", name));
    bytes += name.size() + value.size() + 2;
  }
  if (bytes > 128_KiB) return usage_error("--env: the variables take more than 128 KiB together");
  return {};
}

Result<void> check_network(const Policy& policy) {
  const NetworkPolicy& allowed = policy.allowed;
  const std::array<std::pair<const char*, bool>, 4> limits{{{"--network-private", !allowed.open_private.empty()},
                                                            {"--net-rate", allowed.rate.has_value()},
                                                            {"--net-bytes", allowed.bytes.has_value()},
                                                            {"--net-connections", allowed.connections.has_value()}}};
  if (policy.network != Network::allow) {
    for (const auto& [option, given] : limits)
      if (given)
        return usage_error(fmt::format("{}: there is no list of hosts that it could be about", option),
                           "name them with --network allow:HOST,...");
    return {};
  }
  return validate(allowed);
}

}  // namespace

bool is_profile_name(std::string_view name) {
  return !name.empty() && name.size() <= 100 && name.front() != '.' && name.front() != '-' &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string_view::npos;
}

Result<void> check_lendable(std::string_view option, std::string_view path) {
  for (std::string_view refused : {"/", "/proc", "/sys", "/dev", "/run", "/var/run"})
    if (path == refused)
      return usage_error(fmt::format("{}: {} is never lent as a whole", option, path),
                         "lend the files or folders that the guest needs");
  return {};
}

Result<void> validate(const Policy& policy) {
  const Limits& limits = policy.limits;
  const std::array<Range, 7> ranges{{
      {"--memory", limits.memory, 4_MiB, 1ULL << 50},
      {"--pids", limits.pids, 1, 4'000'000},
      {"--disk", limits.disk, 64_KiB, 1ULL << 50},
      {"--inodes", limits.inodes, 16, 1ULL << 40},
      {"--output", limits.output, 0, 1ULL << 40},
      {"--files", limits.files, 8, 1'000'000},
      {"--cpus", limits.cpus, 10, 1'000'000},
  }};
  for (const Range& range : ranges)
    if (range.value < range.least || range.value > range.most) {
      const bool bytes = range.name == "--memory" || range.name == "--disk" || range.name == "--output";
      const auto show = [&](std::uint64_t n) {
        return range.name == "--cpus" ? format_cpus(static_cast<std::uint32_t>(n))
                                      : (bytes ? format_size(n) : fmt::format("{}", n));
      };
      return usage_error(fmt::format("{}: {} is not between {} and {}", range.name, show(range.value),
                                     show(range.least), show(range.most)));
    }
  if (limits.cpu_time && limits.cpu_time->count() <= 0) return usage_error("--cpu-time: the time must be above zero");
  for (const auto& [name, rate] : {std::pair{"--io-read", limits.io_read}, {"--io-write", limits.io_write}})
    if (rate && *rate < 4096) return usage_error(fmt::format("{}: the rate is below 4096 bytes per second", name));
  PCTX_TRY(check_targets(policy));
  PCTX_TRY(check_identity(policy));
  PCTX_TRY(check_network(policy));
  if (policy.apparmor && !is_profile_name(*policy.apparmor))
    return usage_error(fmt::format("--apparmor: '{}' is not a profile's name", *policy.apparmor),
                       "names have letters, digits, dots, dashes and underscores, at most 100 of them");
  if (!policy.workdir.empty()) PCTX_TRY(check_guest_path("--workdir", policy.workdir));
  if (const LayerSet both = policy.require & policy.allow_degraded; both.any())
    for (const LayerInfo& entry : kLayers)
      if (both.test(index(entry.layer)))
        return usage_error(fmt::format("'{}' stands in both --require and --allow-degraded", entry.name));
  return {};
}

}  // namespace pctx
