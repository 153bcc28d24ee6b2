// From Podman's words to a sentence and a next step: pure.
#include <unistd.h>

#include <array>
#include <charconv>

#include <fmt/format.h>

#include "backend/podman/podman.h"
#include "sys/files.h"

namespace pctx::backend::podman {
namespace {

struct Meaning {
  std::string_view words;  // in what Podman says
  const char* cause;
  const char* fix;  // {0}: the user, {1} and {2}: the first and the last of the ids that are free
};

constexpr const char* kGiveIds =
    "sudo usermod --add-subuids {1}-{2} --add-subgids {1}-{2} {0} && podman system migrate";

// The first that matches; the narrow ones come first.
constexpr std::array kMeanings{
    Meaning{"no subuid ranges found",
            "this user has no subordinate ids, without which Podman cannot give a container users", kGiveIds},
    Meaning{"no subgid ranges found",
            "this user has no subordinate group ids, without which Podman cannot give a container users", kGiveIds},
    Meaning{"potentially insufficient UIDs", "this user has too few subordinate ids for a container", kGiveIds},
    Meaning{"newuidmap", "newuidmap, which gives a rootless container its users, is missing or refuses",
            "sudo apt-get install uidmap (shadow-utils on Fedora), and look at /etc/subuid for {0}"},
    Meaning{"rootless containers not supported", "this Podman cannot run without root here",
            "look at /etc/subuid for {0} and at 'podman info'"},
    Meaning{"hybrid", "the container runtime crun cannot run where cgroup v1 and v2 are mounted together",
            "install runc (sudo apt-get install runc), or boot with one of the two"},
    Meaning{"user namespaces are not enabled", "the kernel's user namespaces are switched off, which Podman needs too",
            "sudo sysctl user.max_user_namespaces=15000"},
    Meaning{
        "cannot clone: Operation not permitted", "user namespaces are refused to Podman too",
        "let this user make them (sudo pctx-sandbox setup); in a container, start the outer one with the rights that "
        "Podman's manual names"},
    Meaning{"cannot re-exec process", "Podman cannot enter its own user namespace",
            "run 'podman system migrate', and look at /etc/subuid for {0}"},
    Meaning{"is not supported over overlayfs", "Podman's storage lies on an overlay: it runs inside a container itself",
            "give the outer container a volume at Podman's storage, or set driver = \"vfs\" in storage.conf"},
    Meaning{"setting rlimit", "the runtime cannot set the container's limits: the caller's own are lower",
            "raise the hard limits of the caller (ulimit -Hn, ulimit -Hu)"},
    Meaning{"no space left on device", "the disk that holds Podman's storage is full",
            "free some space: podman system prune, pctx-sandbox env prune"},
    Meaning{"disk quota exceeded", "the quota for Podman's storage is used up",
            "free some space: podman system prune, pctx-sandbox env prune"},
    Meaning{"read-only file system", "Podman cannot write to its storage or its runtime folder",
            "look at 'podman info' for graphRoot and runRoot"},
    Meaning{"unable to connect to Podman", "the machine that Podman leads to is stopped, or does not answer",
            "podman machine start, or look at 'podman system connection list' and CONTAINER_HOST"},
    Meaning{"statfs", "the machine that containers run on lacks a folder that this host lends them",
            "let the machine share your home folder, and name an image that has your Python with PCTX_SANDBOX_IMAGE"},
    Meaning{"OCI runtime not found", "Podman has no container runtime", "install crun or runc"},
    Meaning{"could not find a working conmon", "conmon, which Podman starts containers with, is missing",
            "install conmon"},
    Meaning{"seccomp", "the container's system call profile was refused", "use Podman and a runtime with seccomp"},
};

// The first with `--ipc none`. With 3.4, of Ubuntu 22.04, commands in the container and restarts of it failed.
constexpr unsigned kOldestPodman = 4;

std::string last_words(std::string_view words) {
  std::string last;
  for (std::string_view line : sys::split(words, '\n'))
    if (!line.empty() && line.find("level=warning") == std::string_view::npos) last = line;
  return last.substr(0, 600);
}

}  // namespace

Trouble trouble_in(std::string_view words) {
  const auto says = [&](std::string_view text) { return words.find(text) != std::string_view::npos; };
  if (says("image not known") || says("no such image") || says("unable to find a name and tag match") ||
      says("failed to find image") || says("pull policy is \"never\""))
    return Trouble::no_image;
  if (says("is already in use") || says("device or resource busy") || says("container state improper"))
    return Trouble::in_the_way;
  if (says("hybrid")) return Trouble::runtime_hybrid;
  if (says("is not available under") || says("controller") || says("cgroup")) return Trouble::no_limits;
  return Trouble::other;
}

bool leaves_limits_out(std::string_view words) {
  return words.find("not supported and ignored") != std::string_view::npos ||
         words.find("discarded") != std::string_view::npos;
}

Error explain_failure(std::string_view words, const Caller& caller) {
  for (const Meaning& meaning : kMeanings)
    if (words.find(meaning.words) != std::string_view::npos)
      return unavailable(fmt::format("{} (Podman says: {})", meaning.cause, last_words(words)),
                         fmt::format(fmt::runtime(meaning.fix), caller.name, caller.free_ids, caller.free_ids + 65535));
  return unavailable(fmt::format("Podman cannot start the container: {}", last_words(words)),
                     "try 'podman info' and 'podman run', which say more");
}

Result<void> check_version(std::string_view version) {
  unsigned major = 0;
  const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), major);
  const bool readable = error == std::errc{} && end != version.data() + version.size() && *end == '.';
  if (readable && major >= kOldestPodman) return {};
  return unavailable(readable ? fmt::format("Podman {} is too old: {}.0 or newer is needed", version, kOldestPodman)
                              : fmt::format("'podman info' names no version of Podman that can be read: '{}'", version),
                     "use a distribution that has it (Debian 12, Ubuntu 24.04 or newer), or --backend namespaces");
}

std::string install_command() {
  const std::string sudo = ::geteuid() == 0 ? "" : "sudo ";
  if (::access("/usr/bin/apt-get", X_OK) == 0) return sudo + "apt-get install podman";
  if (::access("/usr/bin/dnf", X_OK) == 0) return sudo + "dnf install podman";
  if (::access("/usr/bin/pacman", X_OK) == 0) return sudo + "pacman -S podman";
  if (::access("/usr/bin/zypper", X_OK) == 0) return sudo + "zypper install podman";
  if (::access("/sbin/apk", X_OK) == 0) return sudo + "apk add podman";
  return "install podman with this system's package manager";
}

}  // namespace pctx::backend::podman
