// Limits of the container itself, around those of each run inside: pure but for the list of disks.
#include <sys/stat.h>

#include <algorithm>

#include <fmt/format.h>

#include "backend/podman/podman.h"
#include "base/units.h"
#include "sys/files.h"
#include "sys/host.h"

namespace pctx::backend::podman {
namespace {

constexpr const char* kForm =
    "write PCTX_SANDBOX_CONTAINER_LIMITS=memory=8G,cpus=2,pids=4096,io-read=100M,io-write=50M, or a part of it";

}  // namespace

Result<ContainerLimits> read_limits(std::string_view text, ContainerLimits limits) {
  for (std::string_view entry : sys::split(text, ',')) {
    if (entry.empty()) continue;
    const std::size_t equal = entry.find('=');
    const std::string_view name = entry.substr(0, equal);
    const std::string_view value = equal == entry.npos ? "" : entry.substr(equal + 1);
    const auto wrong = [&](const Error& error) {
      return usage_error(fmt::format("the container's limit '{}': {}", entry, error.what), kForm);
    };
    if (name == "cpus") {
      const auto cpus = parse_cpus(value);
      if (!cpus) return wrong(cpus.error());
      limits.cpus = *cpus;
    } else if (name == "pids") {
      const auto pids = parse_count(value);
      if (!pids) return wrong(pids.error());
      limits.pids = *pids;
    } else if (name == "memory" || name == "io-read" || name == "io-write") {
      const auto size = parse_size(value);
      if (!size) return wrong(size.error());
      if (*size < 1_MiB) return usage_error(fmt::format("the container's limit '{}' is less than 1M", entry), kForm);
      (name == "memory" ? limits.memory : name == "io-read" ? limits.io_read : limits.io_write) = *size;
    } else {
      return usage_error(fmt::format("the container has no limit '{}'", name), kForm);
    }
    limits.named = true;
  }
  if (limits.named && (limits.pids < 64 || limits.cpus == 0))
    return usage_error("the container needs 64 processes and a part of a CPU at least", kForm);
  return limits;
}

std::vector<std::string> limit_arguments(const ContainerLimits& limits, const std::vector<std::string>& disks) {
  if (limits.none) return {};
  const std::string memory = fmt::format("{}b", limits.memory);
  std::vector<std::string> words{"--memory",      memory,
                                 "--memory-swap", memory,  // both together: no swap on top
                                 "--cpus",        format_cpus(limits.cpus),
                                 "--pids-limit",  std::to_string(limits.pids)};
  for (const std::string& disk : disks) {
    if (limits.io_read != 0)
      words.insert(words.end(), {"--device-read-bps", fmt::format("{}:{}", disk, limits.io_read)});
    if (limits.io_write != 0)
      words.insert(words.end(), {"--device-write-bps", fmt::format("{}:{}", disk, limits.io_write)});
  }
  return words;
}

std::string shown_limits(const ContainerLimits& limits) {
  if (limits.none) return "processes by an rlimit; the rest is unlimited: Podman may not set cgroups for this user";
  std::string text = fmt::format("memory {}, {} CPUs, {} processes", format_size(limits.memory),
                                 format_cpus(limits.cpus), limits.pids);
  for (const auto& [what, rate] : {std::pair{"read", limits.io_read}, {"write", limits.io_write}})
    text += rate == 0 ? fmt::format(", disks {} unlimited", what)
                      : fmt::format(", disks {} {} a second", what, format_size(rate));
  return text;
}

std::vector<std::string> disks_of_the_host() {
  std::vector<std::string> paths;
  for (const std::string& disk : disks()) {
    std::string path = fmt::format("/dev/{}", disk);
    std::replace(path.begin(), path.end(), '!', '/');
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && S_ISBLK(status.st_mode)) paths.push_back(path);
  }
  return paths;
}

}  // namespace pctx::backend::podman
