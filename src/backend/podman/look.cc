// Whether Podman can be used here, found without changing anything.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>

#include "backend/podman/podman.h"
#include "sys/apparmor.h"
#include "sys/files.h"
#include "sys/host.h"
#include "sys/process.h"

namespace pctx::backend::podman {

std::string user_name() {
  for (const char* name : {"USER", "LOGNAME"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  return fmt::format("#{}", ::geteuid());
}

namespace {

// Which limits the container can have: "[cpu memory pids]", word by word.
std::string shown_controllers(std::vector<std::string_view> words) {
  std::string text;
  for (std::string_view& word : words) {
    while (word.starts_with('[')) word.remove_prefix(1);
    while (word.ends_with(']')) word.remove_suffix(1);
  }
  for (const auto& [what, names] : {std::pair{"memory", std::array{"memory", "memory"}},
                                    {"CPUs", {"cpu", "cpu"}},
                                    {"processes", {"pids", "pids"}},
                                    {"disks", {"io", "blkio"}}})
    if (std::any_of(words.begin(), words.end(),
                    [&names = names](auto word) { return word == names[0] || word == names[1]; }))
      text += fmt::format("{}{}", text.empty() ? "can limit the container's " : ", ", what);
  return text.empty() ? "cannot limit the container" : text;
}

}  // namespace

// Podman confines what root starts, by a profile of its own that refuses mounts; a rootless one may load none.
Result<std::string> apparmor_profile() {
  if (::geteuid() != 0 || !sys::kernel_has_apparmor() || !named_machine().empty()) return std::string{};
  const sys::Finished info =
      PCTX_TRY(sys::run_program({sys::find_program("podman"), "info", "--format", "{{.Host.Security.AppArmorEnabled}}"},
                                -1, kMostWords, kPodmanPatience));
  if (!info.out.starts_with("true")) return std::string{};
  if (sys::profile_mode(kContainerProfile)) return std::string{kContainerProfile};
  return unavailable("the AppArmor profile that Podman gives root's containers refuses the mounts of boxes",
                     fmt::format("'pctx-sandbox setup' installs {}, which lets them", kContainerProfile));
}

Standing look() {
  const std::string program = sys::find_program("podman");
  if (program.empty()) return {false, "Podman is not installed", install_command()};
  const auto info = sys::run_program(
      {program, "info", "--format",
       "{{.Version.Version}} {{.Host.OCIRuntime.Name}} {{.Host.CgroupsVersion}} {{.Host.CgroupManager}} "
       "{{.Host.CgroupControllers}}"},
      -1, kMostWords, kPodmanPatience);
  if (!info) return {false, info.error().what, info.error().hint};
  if (info->status != 0) {
    const Error error = explain_failure(info->err, user_name());
    return {false, error.what, error.hint};
  }
  const auto words = sys::split(std::string_view{info->out}.substr(0, info->out.find('\n')), ' ');
  if (words.size() < 4) return {false, fmt::format("'podman info' says '{}'", info->out), "try it by hand"};
  if (!named_machine().empty())
    return {
        true,
        fmt::format("Podman {} of another machine, with {}, cgroup {} ({})", words[0], words[1], words[2], words[3]),
        ""};
  if (::geteuid() != 0) {
    const HostFeatures host = probe_host();
    if (!host.subuid || !host.subgid) {
      const Error error = explain_failure("no subuid ranges found", user_name());
      return {false, error.what, error.hint};
    }
  }
  if (const auto profile = apparmor_profile(); !profile) return {false, profile.error().what, profile.error().hint};
  return {true,
          fmt::format("Podman {}, {}, with {}, cgroup {} ({}), {}", words[0], ::geteuid() == 0 ? "as root" : "rootless",
                      words[1], words[2], words[3], shown_controllers({words.begin() + 4, words.end()})),
          ""};
}

}  // namespace pctx::backend::podman
