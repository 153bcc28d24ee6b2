#include "launch/profile_text.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "launch/apparmor_profiles.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+~=%# ";

bool is_literal(std::string_view path) { return path.find_first_not_of(kPlain) == std::string_view::npos; }

std::string rule(std::string_view path, std::string_view rights) {
  return path.find_first_of("~=%# ") == std::string_view::npos ? fmt::format("  {} {},\n", path, rights)
                                                               : fmt::format("  \"{}\" {},\n", path, rights);
}

// What a box holds; the rest of what a profile says is the same for all.
Result<std::string> path_rules(const Plan& plan) {
  std::string lent, writable;
  for (const RootOp& op : plan.root) {
    const std::string path = "/" + op.target;
    if (path.starts_with("/etc/") || path == "/mnt") continue;  // below
    switch (op.kind) {
      case RootOpKind::bind:
        if (op.device) {
          writable += rule(path, "rw");
          break;
        }
        if (!is_literal(path))
          return usage_error(fmt::format("AppArmor cannot name {} literally", path),
                             "move it to a path of letters, digits, dots, dashes and underscores");
        lent += rule(op.directory ? path + "/**" : path, "mrix");
        break;
      case RootOpKind::file:
        if (path == "/dev/zero") writable += rule(path, "rw");  // where no cgroup counts what is mapped from the device
        break;
      case RootOpKind::scratch:
      case RootOpKind::tmpfs:
        writable += rule(path + "/**", "mrwlkix");
        break;
      default:
        break;
    }
  }
  return fmt::format(
      "  # What is lent read-only. A program that is run stays in here.\n{}"
      "  /etc/** r,\n  /script/** r,\n  /run/pctx/** mrix,\n\n"
      "  # What is the box's own, and /mnt.\n{}  /mnt/** mrwlkix,\n"
      "  /dev/pts/* rw,\n  /dev/ptmx rw,\n  /proc/** r,\n\n"
      "  # Names only: the box's root holds nothing but the above.\n  / r,\n  /**/ r,\n",
      lent, writable);
}

constexpr std::string_view kBody = R"profile(
  # Which of these lead anywhere is decided by the network namespace.
  network inet stream,
  network inet dgram,
  network inet6 stream,
  network inet6 dgram,
  network unix,
  unix,
  deny network inet raw,
  deny network inet6 raw,
  deny network packet,

  # Guests signal and look at each other; the supervisor outside ends them and counts their memory.
  signal (send) peer={0},
  signal (receive),
  ptrace (read, trace) peer={0},
  ptrace (readby, tracedby),

{1}  deny mount,
  deny remount,
  deny umount,
  deny pivot_root,
)profile";

constexpr std::string_view kZygoteRights =
    "  # Needed to fork into the boxes of Workers, held in their user namespaces and nowhere else.\n"
    "  capability sys_admin,\n  capability sys_chroot,\n  capability setpcap,\n";

// The same for every payload but for its name: as the file has it that `setup` installs.
std::string launch_profile_text(std::string_view name) {
  constexpr std::string_view kBegin = "# The processes that make boxes", kEnd = "\n}\n", kOurs = "pctx-sandbox-";
  std::string_view rest = kGuestProfileText.substr(kGuestProfileText.find(kBegin));
  rest = rest.substr(0, rest.find(kEnd) + kEnd.size());
  std::string text;
  for (std::size_t at; (at = rest.find(kOurs)) != std::string_view::npos;) {
    text += fmt::format("{}{}", rest.substr(0, at), name);
    rest.remove_prefix(at + kOurs.size());
    if (rest.starts_with("guest"))
      rest.remove_prefix(5);
    else
      text += '-';  // of its launch, of its Zygote
  }
  return text.append(rest);
}

}  // namespace

Result<std::string> payload_profile(const std::string& name, const Plan& plan) {
  const std::string paths = PCTX_TRY(path_rules(plan));
  std::string text = fmt::format(
      "# What a guest may do after its exec, on top of the box's namespaces, Landlock rules and system call filter.\n"
      "# Written by 'pctx-sandbox apparmor profile --name {0}' for one virtualenv; additions go to "
      "/etc/apparmor.d/local/{0}.\n\n"
      "abi <abi/3.0>,\n\ninclude <tunables/global>\n",
      name);
  for (const bool zygote : {false, true}) {
    const std::string own = zygote ? name + "-zygote" : name;
    text += fmt::format("\n{}profile {} flags=(attach_disconnected, mediate_deleted) {{\n{}",
                        zygote ? "# Warm runs: a Zygote, and the Workers that it forks.\n" : "", own, paths);
    text += fmt::format(fmt::runtime(kBody), own, zygote ? kZygoteRights : "  deny capability,\n");
    text += fmt::format("\n  include if exists <local/{}>\n}}\n", name);
  }
  text += "\n" + launch_profile_text(name);
  return text;
}

std::string profile_diff(std::string_view installed, std::string_view wanted) {
  if (installed == wanted) return "";
  constexpr std::size_t kMostLines = 2000;  // of a table of their product
  const auto before = sys::split(installed, '\n'), after = sys::split(wanted, '\n');
  if (before.size() > kMostLines || after.size() > kMostLines) return "the files differ in most of their lines\n";
  // Length of the longest common run of lines from each pair of positions on.
  const std::size_t width = after.size() + 1;
  std::vector<std::uint16_t> common((before.size() + 1) * width, 0);
  for (std::size_t i = before.size(); i-- > 0;)
    for (std::size_t j = after.size(); j-- > 0;)
      common[i * width + j] = before[i] == after[j] ? static_cast<std::uint16_t>(common[(i + 1) * width + j + 1] + 1)
                                                    : std::max(common[(i + 1) * width + j], common[i * width + j + 1]);
  struct Line {
    char mark;
    std::string_view text;
  };
  std::vector<Line> lines;
  for (std::size_t i = 0, j = 0; i < before.size() || j < after.size();) {
    if (i < before.size() && j < after.size() && before[i] == after[j])
      lines.push_back({' ', before[i]}), ++i, ++j;
    else if (j == after.size() || (i < before.size() && common[(i + 1) * width + j] >= common[i * width + j + 1]))
      lines.push_back({'-', before[i++]});
    else
      lines.push_back({'+', after[j++]});
  }
  constexpr std::size_t kAround = 2;
  std::string text;
  bool gap = false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    bool near = false;
    for (std::size_t k = i < kAround ? 0 : i - kAround; k <= i + kAround && k < lines.size(); ++k)
      near |= lines[k].mark != ' ';
    if (near) text += fmt::format("{}{} {}\n", gap && !text.empty() ? "  ...\n" : "", lines[i].mark, lines[i].text);
    gap = !near;
  }
  return text;
}

}  // namespace pctx
