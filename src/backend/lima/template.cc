// What Lima is told, and what it tells: pure.
#include <fmt/format.h>

#include "backend/lima/lima.h"
#include "base/json.h"
#include "base/units.h"
#include "sys/files.h"

namespace pctx::backend::lima {
namespace {

// The release whose Python most distributions of its year have: a call needs the caller's version over there.
constexpr std::string_view kDebian =
    "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-{}.qcow2";

// JSON is YAML, with one way to quote.
std::string in_quotes(std::string_view text) { return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace); }

std::string image_lines(const Machine& machine) {
  if (machine.image.empty())
    return fmt::format("- location: {}\n  arch: x86_64\n- location: {}\n  arch: aarch64\n",
                       in_quotes(fmt::format(fmt::runtime(kDebian), "amd64")),
                       in_quotes(fmt::format(fmt::runtime(kDebian), "arm64")));
  std::string lines = fmt::format("- location: {}\n", in_quotes(machine.image));
  if (!machine.kernel.empty())
    lines += fmt::format("  kernel:\n    location: {}\n    cmdline: \"root=/dev/vda rw console=ttyS0\"\n",
                         in_quotes(machine.kernel));
  if (!machine.initrd.empty()) lines += fmt::format("  initrd:\n    location: {}\n", in_quotes(machine.initrd));
  return lines;
}

}  // namespace

std::string template_text(const Machine& machine) {
  return fmt::format(
      "# Made by pctx-sandbox; 'limactl delete --force' and the next call make the machine anew.\n"
      "images:\n{}"
      "cpus: {}\n"
      "memory: \"{}MiB\"\n"
      "disk: \"20GiB\"\n"
      // Debian's cloud kernel does not have it, and Lima's own default would be it.
      "mountTypesUnsupported: [\"9p\"]\n"
      "mounts:\n"
      "- location: {}\n"
      "  writable: true\n"
      "- location: {}\n"
      "  writable: false\n"
      "containerd:\n"
      "  system: false\n"
      "  user: false\n"
      "ssh:\n"
      "  loadDotSSHPubKeys: false\n"
      "  forwardAgent: false\n"
      "propagateProxyEnv: false\n"
      "portForwards:\n"
      "- guestIPMustBeZero: false\n"
      "  guestIP: \"0.0.0.0\"\n"
      "  guestPortRange: [1, 65535]\n"
      "  ignore: true\n"
      "- guestPortRange: [1, 65535]\n"
      "  ignore: true\n",
      image_lines(machine), machine.cpus, machine.memory / 1_MiB, in_quotes(machine.shared),
      in_quotes(machine.environments));
}

Result<State> state_of(std::string_view listed, std::string_view instance) {
  for (std::string_view line : sys::split(listed, '\n')) {
    if (line.empty()) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("name") || !json["name"].is_string())
      return unavailable("'limactl list --json' prints something unknown", "use Lima 1.0 or newer");
    if (json["name"].get_ref<const std::string&>() != instance) continue;
    const Json status = json.value("status", Json{});
    if (status == "Running") return State::running;
    if (status == "Stopped") return State::stopped;
    return State::broken;
  }
  return State::absent;
}

std::string install_command() {
  return "brew install lima (macOS and Linux), or see https://lima-vm.io/docs/installation/";
}

}  // namespace pctx::backend::lima
