// Whether Podman can be used here. Asked, it makes folders and a process of its own, as for any of its commands; we
// change nothing.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <tuple>

#include <fmt/format.h>

#include "backend/podman/podman.h"
#include "sys/apparmor.h"
#include "sys/files.h"
#include "sys/host.h"
#include "sys/process.h"

namespace pctx::backend::podman {

Caller caller() {
  const auto account = find_account(::geteuid());
  const std::string name = account ? account->name : "";
  const bool plain = !name.empty() && name.front() != '-' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
  return {plain ? name : "\"$(id -un)\"", free_subordinate_id()};
}

std::string shown_controllers(std::string_view version, std::vector<std::string_view> words) {
  for (std::string_view& word : words) {
    while (word.starts_with('[')) word.remove_prefix(1);
    while (word.ends_with(']')) word.remove_suffix(1);
  }
  const auto has = [&](std::string_view name) { return std::find(words.begin(), words.end(), name) != words.end(); };
  std::string text;
  for (const auto& [what, one, other] : {std::tuple{"memory", "memory", "memory"},
                                         {"CPUs", "cpu", "cpu"},
                                         {"processes", "pids", "pids"},
                                         {"disks", "io", "blkio"}})
    if (has(one) || has(other)) text += fmt::format("{}{}", text.empty() ? "" : ", ", what);
  if (text.empty()) return "cannot limit the container";
  // Those of a run take what a box's cgroup cannot do without, and one that can be handed to the container's user.
  return version == "v2" && has("memory") && has("pids")
             ? fmt::format("can limit {} of the container and of each run in it", text)
             : fmt::format("can limit {} of the container; limits of a run in it bind without cgroups", text);
}

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
    const Error error = explain_failure(info->err, caller());
    return {false, error.what, error.hint};
  }
  const auto words = sys::split(std::string_view{info->out}.substr(0, info->out.find('\n')), ' ');
  if (words.size() < 4) return {false, fmt::format("'podman info' says '{}'", info->out), "try it by hand"};
  if (const auto checked = check_version(words[0]); !checked)
    return {false, checked.error().what, checked.error().hint};
  if (!named_machine().empty())
    return {
        true,
        fmt::format("Podman {} of another machine, with {}, cgroup {} ({})", words[0], words[1], words[2], words[3]),
        ""};
  if (::geteuid() != 0) {
    const HostFeatures host = probe_host();
    if (!host.subuid || !host.subgid) {
      const Error error = explain_failure("no subuid ranges found", caller());
      return {false, error.what, error.hint};
    }
  }
  if (const auto profile = apparmor_profile(); !profile) return {false, profile.error().what, profile.error().hint};
  return {true,
          fmt::format("Podman {}, {}, with {}, cgroup {} ({}), {}", words[0], ::geteuid() == 0 ? "as root" : "rootless",
                      words[1], words[2], words[3], shown_controllers(words[2], {words.begin() + 4, words.end()})),
          ""};
}

}  // namespace pctx::backend::podman
