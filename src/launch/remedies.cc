#include "launch/remedies.h"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "launch/apparmor_profiles.h"
#include "sys/files.h"

namespace pctx {
namespace {

constexpr const char* kLauncherFile = "/etc/apparmor.d/pctx-sandbox";
constexpr const char* kGuestFile = "/etc/apparmor.d/pctx-sandbox-guest";
constexpr std::string_view kEnd = "END";

Instruction run(std::string command) { return {"", "", std::move(command)}; }
Instruction write(std::string file, std::string content) { return {std::move(file), std::move(content), ""}; }

// A path or name that neither a shell nor AppArmor reads as anything but itself.
bool is_plain(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view{"/._-+"}.find(c) != std::string_view::npos;
  });
}

std::string quoted(const std::string& word) {
  if (is_plain(word)) return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string{"'\\''"} : std::string{c};
  return text + "'";
}

std::vector<Instruction> install(PackageManager manager, std::string_view apt, std::string_view dnf,
                                 std::string_view pacman) {
  switch (manager) {
    case PackageManager::apt:
      return {run(fmt::format("apt-get install -y {}", apt))};
    case PackageManager::dnf:
      return {run(fmt::format("dnf install -y {}", dnf))};
    case PackageManager::pacman:
      return {run(fmt::format("pacman -S --needed --noconfirm {}", pacman))};
    case PackageManager::none:
      break;
  }
  return {};
}

bool namespaces_work(const HostFacts& facts) {
  for (Layer layer : {Layer::user, Layer::pid, Layer::mount, Layer::network, Layer::ipc})
    if (!facts.works(layer)) return false;
  return true;
}

Layer first_missing_namespace(const HostFacts& facts) {
  for (Layer layer : {Layer::user, Layer::pid, Layer::mount, Layer::network})
    if (!facts.works(layer)) return layer;
  return Layer::ipc;
}

Remedy switch_on(const HostFacts& facts, std::string_view setting, long value, std::string_view file, std::string why) {
  Remedy remedy{"user", true, Doer::setup, std::move(why), {}};
  if (facts.container != Container::none) {
    remedy.doer = Doer::container;
    remedy.steps = {run(fmt::format("sysctl -w {}={}   # on the container's host", setting, value))};
    return remedy;
  }
  // A file for each setting: one written later does not undo an earlier one.
  const std::string path = fmt::format("/etc/sysctl.d/60-pctx-sandbox-{}.conf", file);
  remedy.steps = {write(path, fmt::format("{} = {}\n", setting, value)), run(fmt::format("sysctl -p {}", path))};
  return remedy;
}

Remedy launcher_profile(const HostFacts& facts) {
  Remedy remedy{"user",
                true,
                Doer::setup,
                "AppArmor lets only named programs make user namespaces "
                "(kernel.apparmor_restrict_unprivileged_userns = 1)",
                {}};
  if (!facts.apparmor_parser) remedy.steps = install(facts.packages, "apparmor", "apparmor-parser", "apparmor");
  const auto text = launcher_profile_for(facts.program, facts.launcher_profile);
  if (!text) remedy.steps.push_back(run(fmt::format("install {} /usr/local/bin/pctx-sandbox", quoted(facts.program))));
  const std::string wanted = text.value_or(std::string{kLauncherProfileText});
  if (wanted != facts.launcher_profile) remedy.steps.push_back(write(kLauncherFile, wanted));
  remedy.steps.push_back(run(fmt::format("apparmor_parser -r {}", kLauncherFile)));
  return remedy;
}

// Kubernetes' stricter profiles drop all capabilities; since Linux 5.12 root may not map itself then.
constexpr std::string_view kNoSetfcap =
    "root has no CAP_SETFCAP, without which it may not be in a user namespace (start as another user, or add it)";

// The smallest set of options with which a container lets a box be made in it. Each is named only if its lack was seen.
struct ContainerNeeds {
  bool setfcap = false, seccomp = false, apparmor = false, label = false, proc = false;

  bool any() const { return setfcap || seccomp || apparmor || label || proc; }
};

ContainerNeeds container_needs(const HostFacts& facts) {
  ContainerNeeds needs;
  // What follows from that one lack is no sign of another.
  const bool blocked = !namespaces_work(facts) && facts.maps_own_id;
  needs.setfcap = !facts.maps_own_id;
  for (Layer layer : {Layer::user, Layer::pid, Layer::mount, Layer::network, Layer::ipc})
    // The default filters answer EPERM, and ENOSYS for clone3; AppArmor and SELinux answer EACCES.
    needs.seccomp |=
        !facts.works(layer) && facts.layer(layer).code != EACCES && (layer != Layer::user || facts.maps_own_id);
  needs.apparmor = blocked && !facts.own_profile.empty();
  needs.label = blocked && facts.own_profile.empty() && facts.layer(Layer::mount).code == EACCES;
  needs.proc = facts.proc_masked && !facts.works(Layer::proc);
  return needs;
}

std::vector<Instruction> container_lines(const HostFacts& facts, const ContainerNeeds& needs) {
  std::string options;
  const auto add = [&](bool wanted, std::string_view option) {
    if (wanted) options += fmt::format("--security-opt {} ", option);
  };
  if (needs.setfcap) options = "--cap-add SETFCAP ";
  switch (facts.container) {
    case Container::kubernetes: {
      std::string fields;
      const auto field = [&](bool wanted, std::string_view text) {
        if (wanted) fields += fmt::format("{}{}", fields.empty() ? "" : ", ", text);
      };
      field(needs.setfcap, "capabilities: {add: [SETFCAP]}");
      field(needs.proc, "procMount: Unmasked");
      field(needs.seccomp, "seccompProfile: {type: Unconfined}");
      field(needs.apparmor, "appArmorProfile: {type: Unconfined}");
      field(needs.label, "seLinuxOptions: {type: spc_t}");
      std::vector<Instruction> lines{run(fmt::format("securityContext: {{{}}}   # of the container", fields))};
      // The API server refuses Unmasked in a pod that shares the host's users.
      if (needs.proc) lines.push_back(run("hostUsers: false   # of the pod"));
      return lines;
    }
    case Container::podman:
      add(needs.seccomp, "seccomp=unconfined");
      add(needs.apparmor, "apparmor=unconfined");
      add(needs.label, "label=disable");
      add(needs.proc, "unmask=ALL");
      return {run(fmt::format("podman run {}IMAGE", options))};
    case Container::docker:
      break;
    case Container::other:
    case Container::none:
      return {};
  }
  add(needs.seccomp, "seccomp=unconfined");
  add(needs.apparmor, "apparmor=unconfined");
  add(needs.label, "label=disable");
  add(needs.proc, "systempaths=unconfined");
  return {run(fmt::format("docker run {}IMAGE", options))};
}

void add_container(std::vector<Remedy>& list, const HostFacts& facts) {
  const ContainerNeeds needs = container_needs(facts);
  if (!needs.any()) return;
  std::string what;
  const auto name_it = [&](bool wanted, std::string_view text) {
    if (wanted) what += fmt::format("{}{}", what.empty() ? "" : ", ", text);
  };
  name_it(needs.setfcap, kNoSetfcap);
  name_it(needs.seccomp, "its system call filter refuses namespaces");
  name_it(needs.apparmor, fmt::format("its AppArmor profile {} refuses mounts", facts.own_profile));
  name_it(needs.label, "its SELinux label refuses mounts");
  name_it(needs.proc, "parts of its /proc are masked, so no new one may be mounted");
  const bool only_proc = !needs.setfcap && !needs.seccomp && !needs.apparmor && !needs.label;
  list.push_back({only_proc ? "proc" : std::string{info(first_missing_namespace(facts)).name}, true, Doer::container,
                  fmt::format("this {} container is in the way: {}", name(facts.container), what),
                  container_lines(facts, needs)});
}

void add_namespaces(std::vector<Remedy>& list, const HostFacts& facts) {
  const std::size_t before = list.size();
  const bool blocked = !namespaces_work(facts);
  if (blocked && facts.max_user_namespaces == 0)
    list.push_back(switch_on(facts, "user.max_user_namespaces", 15000, "namespaces",
                             "user namespaces are switched off (user.max_user_namespaces = 0)"));
  if (blocked && facts.userns_clone == 0 && !facts.host.privileged)
    list.push_back(switch_on(facts, "kernel.unprivileged_userns_clone", 1, "userns",
                             "only root may make user namespaces (kernel.unprivileged_userns_clone = 0)"));
  if (!facts.works(Layer::user) && facts.layer(Layer::user).code == ENOSPC &&
      facts.max_user_namespaces.value_or(1) != 0)
    list.push_back({"user",
                    true,
                    Doer::caller,
                    "the limit of user namespaces is reached, ours or that of a namespace around us: end what holds "
                    "them, or raise user.max_user_namespaces",
                    {}});
  if (facts.container != Container::none) {
    add_container(list, facts);
  } else {
    if (!facts.maps_own_id) list.push_back({"user", true, Doer::caller, std::string{kNoSetfcap}, {}});
    if (blocked && facts.apparmor_restricts_userns == 1 && !facts.host.privileged)
      list.push_back(launcher_profile(facts));
    // AppArmor's own switch is known by now; who else answers EACCES is SELinux.
    if (blocked && list.size() == before && facts.selinux_enforces == true &&
        facts.layer(first_missing_namespace(facts)).code == EACCES)
      list.push_back({std::string{info(first_missing_namespace(facts)).name},
                      true,
                      Doer::caller,
                      "SELinux is enforcing and refuses namespaces to the domain that we run in: these lines show its "
                      "refusals, from which a rule is made",
                      {run("sudo ausearch -m avc -c pctx-sandbox | audit2allow -M pctx_sandbox"),
                       run("sudo semodule -i pctx_sandbox.pp")}});
    if (!blocked && !facts.works(Layer::proc)) {
      Remedy remedy{"proc", true, Doer::caller, "this kernel refuses a new /proc", {}};
      if (facts.proc_masked)
        remedy.why = "something is mounted over parts of /proc, so no new one may be mounted: unmount it";
      // Without cgroups a watchdog binds the limits, through the box's /proc.
      if (facts.works(Layer::cgroups)) {
        remedy.why += ", or accept a box without /proc";
        remedy.steps = {run("pctx-sandbox run --allow-degraded proc -- COMMAND")};
      }
      list.push_back(std::move(remedy));
    }
  }
  if (blocked && list.size() == before) {
    const Layer layer = first_missing_namespace(facts);
    list.push_back({std::string{info(layer).name},
                    true,
                    Doer::boot,
                    os_error(fmt::format("the kernel refuses the {} namespace, and none of its switches says so",
                                         info(layer).name),
                             facts.layer(layer).code)
                            .what +
                        "; a filter around us may do so, or it was built without them",
                    {}});
  }
}

// Namespaces that a box can be without.
void add_optional_namespaces(std::vector<Remedy>& list, const HostFacts& facts) {
  if (!namespaces_work(facts)) return;
  for (const Layer layer : {Layer::uts, Layer::cgroup_namespace}) {
    const ProbedLayer& probed = facts.layer(layer);
    if (probed.works) continue;
    const std::string kind = layer == Layer::uts ? "uts" : "cgroup";
    Remedy remedy{std::string{info(layer).name}, false, Doer::caller, "", {}};
    if (probed.code == ENOSPC) {
      remedy.why = fmt::format(
          "the limit of {0} namespaces is reached, ours or that of a namespace around us: raise "
          "user.max_{0}_namespaces",
          kind);
    } else if (facts.container != Container::none && probed.code == EPERM) {
      ContainerNeeds needs = container_needs(facts);  // one line that gives everything
      needs.seccomp = true;
      remedy.doer = Doer::container;
      remedy.why = fmt::format("the system call filter of this {} container refuses {}", name(facts.container),
                               layer == Layer::uts ? "a host name: boxes have the container's" : "it");
      remedy.steps = container_lines(facts, needs);
    } else {
      remedy.why =
          os_error(fmt::format("the kernel refuses it, or a filter around us: {}", info(layer).means), probed.code)
              .what;
    }
    list.push_back(std::move(remedy));
  }
}

void add_filters(std::vector<Remedy>& list, const HostFacts& facts) {
  if (!facts.works(Layer::seccomp))
    list.push_back(
        {"seccomp", true, Doer::boot, "this kernel has no system call filter with listeners (SECCOMP_FILTER)", {}});
  if (facts.works(Layer::landlock)) return;
  Remedy remedy{"landlock", false, Doer::boot, "", {}};
  if (!facts.host.kernel_at_least(5, 13)) {
    remedy.why = "Landlock came with Linux 5.13; the mounts alone keep files apart here";
  } else if (facts.lsm.empty() || facts.lsm.find("landlock") != std::string::npos) {
    remedy.why = facts.container != Container::none ? "the container's system call filter hides Landlock"
                                                    : "this kernel was built without Landlock, or does not say";
  } else {
    std::string others;
    for (std::string_view module : sys::split(facts.lsm, ','))
      if (module != "capability") others += fmt::format(",{}", module);  // it is always there and never named
    remedy.why = "Landlock is not switched on at boot: add this to the kernel's command line (GRUB_CMDLINE_LINUX)";
    remedy.steps = {run(fmt::format("lsm=landlock{}", others))};
  }
  list.push_back(std::move(remedy));
}

void add_ids(std::vector<Remedy>& list, const HostFacts& facts) {
  // Root of a container has no ids of its own to give away.
  if (facts.host.privileged || facts.host.uid == 0 || facts.works(Layer::subordinate_ids)) return;
  // Without an account to look at, nothing can be said of its ids, only of the helpers that every user needs.
  if (facts.any_user && facts.host.id_helpers) return;
  Remedy remedy{"subordinate-ids", false, Doer::setup, "", {}};
  if (facts.host.id_helpers && facts.host.subuid && facts.host.subgid && !facts.host.no_set_id.empty()) {
    remedy.doer = Doer::caller;
    remedy.why = fmt::format("{}, so that newuidmap gains no rights", facts.host.no_set_id);
  }
  if (!facts.host.id_helpers) {
    remedy.why = "newuidmap and newgidmap are not installed";
    remedy.steps = install(facts.packages, "uidmap", "shadow-utils", "shadow");
  }
  if (!facts.any_user && (!facts.host.subuid || !facts.host.subgid)) {
    const std::string user = is_plain(facts.user) ? facts.user : "";
    remedy.why += fmt::format("{}no subordinate ids in /etc/subuid and /etc/subgid{}",
                              remedy.why.empty() ? "" : ", and ", user.empty() ? "" : " for " + user);
    const std::uint32_t first = facts.free_subordinate_id;
    if (!user.empty())
      remedy.steps.push_back(
          run(fmt::format("usermod --add-subuids {0}-{1} --add-subgids {0}-{1} {2}", first, first + 65535, user)));
  }
  remedy.why += ": a guest has the caller's uid";
  list.push_back(std::move(remedy));
}

bool lends(const HostFacts& facts, std::string_view controller) {
  return std::find(facts.controllers.begin(), facts.controllers.end(), controller) != facts.controllers.end();
}

constexpr const char* kNextBest = "; limits bind by rlimits and a watchdog instead";

Remedy container_cgroups(const HostFacts& facts) {
  Remedy remedy{"cgroups", false, Doer::container, "", {}};
  remedy.why = fmt::format("this {} container's cgroups are not ours to divide{}", name(facts.container), kNextBest);
  if (facts.cgroups != CgroupVersion::v2) return remedy;
  switch (facts.container) {
    case Container::docker:
      remedy.steps = {
          run("docker run --security-opt writable-cgroups=true IMAGE   # Docker 28; we must be its first process")};
      break;
    case Container::podman:
      remedy.steps = {run("podman run --security-opt unmask=/sys/fs/cgroup IMAGE   # we must be its first process")};
      break;
    default:
      break;
  }
  return remedy;
}

Remedy delegate(std::string why) {
  constexpr const char* kDropIn = "/etc/systemd/system/user@.service.d/delegate.conf";
  return {"cgroups",
          false,
          Doer::setup,
          std::move(why) + "; in effect after the next login",
          {run("mkdir -p /etc/systemd/system/user@.service.d"),
           write(kDropIn, "[Service]\nDelegate=cpu cpuset io memory pids\n"), run("systemctl daemon-reload")}};
}

void add_cgroups(std::vector<Remedy>& list, const HostFacts& facts) {
  const CgroupHost& lent = facts.host.cgroup;
  if (lent.version == CgroupVersion::v1) return;
  if (lent.version == CgroupVersion::none && facts.container != Container::none) {
    list.push_back(container_cgroups(facts));
    return;
  }
  const bool rootless = !facts.host.privileged;
  if (rootless && facts.cgroups == CgroupVersion::v1) {
    list.push_back(
        {"cgroups",
         false,
         Doer::boot,
         fmt::format("cgroup v1 cannot be delegated to an ordinary user{}; run as root, or boot with cgroup v2: add "
                     "this to the kernel's command line (GRUB_CMDLINE_LINUX)",
                     kNextBest),
         {run("systemd.unified_cgroup_hierarchy=1")}});
    return;
  }
  if (!rootless) {
    if (lent.version == CgroupVersion::none)
      list.push_back({"cgroups", false, Doer::boot, lent.why_none + kNextBest, {}});
    return;
  }
  // v2 without root: a cgroup comes from the user's own systemd, with those controllers that it was lent itself.
  if (facts.user_manager || lent.version == CgroupVersion::v2) {
    std::string missing;
    for (std::string_view controller : {"memory", "pids", "cpu", "io"})
      if (!lends(facts, controller)) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", controller);
    if (!missing.empty() && facts.systemd)
      list.push_back(delegate(fmt::format("this user's systemd was not lent the controllers {}", missing)));
    if (lent.version == CgroupVersion::none && !lent.ask_systemd)
      list.push_back({"cgroups",
                      false,
                      Doer::caller,
                      "no cgroup is delegated to this session: start us in a scope of our own",
                      {run("systemd-run --user --scope -q -p Delegate=yes -- pctx-sandbox run -- COMMAND")}});
    return;
  }
  Remedy remedy{"cgroups", false, Doer::caller, "", {}};
  if (facts.systemd) {
    remedy.why = fmt::format("this user has no systemd of its own to lend a cgroup{}", kNextBest);
    if (is_plain(facts.user))
      remedy.steps = {run(fmt::format("sudo loginctl enable-linger {}", facts.user)),
                      run("export XDG_RUNTIME_DIR=/run/user/$(id -u)")};
  } else {
    remedy.why = fmt::format("without systemd only root can lend a cgroup{}", kNextBest);
  }
  list.push_back(std::move(remedy));
}

void add_apparmor(std::vector<Remedy>& list, const HostFacts& facts) {
  // A container sees the host's modules and may not load profiles into them.
  if (!facts.host.apparmor || facts.guest_profile || facts.container != Container::none) return;
  Remedy remedy{"apparmor", false, Doer::setup, fmt::format("the profile {} is not loaded", kGuestProfile), {}};
  if (!facts.apparmor_parser) remedy.steps = install(facts.packages, "apparmor", "apparmor-parser", "apparmor");
  remedy.steps.push_back(write(kGuestFile, std::string{kGuestProfileText}));
  remedy.steps.push_back(run(fmt::format("apparmor_parser -r {}", kGuestFile)));
  list.push_back(std::move(remedy));
}

}  // namespace

std::string Instruction::line(std::string_view sudo) const {
  if (file.empty()) return fmt::format("{}{}", sudo, command);
  return fmt::format("{}tee {} >/dev/null <<'{}'\n{}{}", sudo, file, kEnd, content, kEnd);
}

const char* name(Container container) {
  switch (container) {
    case Container::none:
      return "no";
    case Container::docker:
      return "Docker";
    case Container::podman:
      return "Podman";
    case Container::kubernetes:
      return "Kubernetes";
    case Container::other:
      break;
  }
  return "unknown";
}

std::string own_name(const std::string& program) {
  for (const char* folder : {"/usr/local/sbin/", "/usr/local/bin/", "/usr/sbin/", "/usr/bin/"})
    if (program == fmt::format("{}pctx-sandbox", folder)) return "pctx-sandbox";
  return program.empty() ? "pctx-sandbox" : quoted(program);
}

std::optional<std::string> launcher_profile_for(const std::string& program, const std::string& installed) {
  constexpr std::string_view kNames = "@{pctx_launchers} ";
  const std::string own = fmt::format("{}+= \"{}\"", kNames, program);
  bool named = false;
  std::string text{kLauncherProfileText};
  for (std::string_view line : sys::split(text, '\n'))
    if (line.starts_with(kNames))
      for (std::string_view word : sys::split(line, ' ')) named |= word == program;
  // What others added stays: the programs of another tree, say.
  std::string added;
  for (std::string_view line : sys::split(installed, '\n')) {
    if (!line.starts_with(kNames) || !line.ends_with('"')) continue;
    named |= line == own;
    added += fmt::format("{}\n", line);
  }
  if (!named) {
    if (!is_plain(program) || program.front() != '/') return std::nullopt;
    added += own + "\n";
  }
  text.insert(text.find("\nprofile ") + 1, added);
  return text;
}

std::vector<Remedy> remedies(const HostFacts& facts) {
  std::vector<Remedy> list;
  if (!facts.host.kernel_at_least(kOldestMajor, kOldestMinor))
    list.push_back({"kernel",
                    true,
                    Doer::boot,
                    fmt::format("Linux {} is older than {}.{}, the oldest that is supported", facts.host.kernel,
                                kOldestMajor, kOldestMinor),
                    {}});
  add_namespaces(list, facts);
  add_optional_namespaces(list, facts);
  add_filters(list, facts);
  add_ids(list, facts);
  add_cgroups(list, facts);
  add_apparmor(list, facts);
  std::stable_sort(list.begin(), list.end(), [](const Remedy& a, const Remedy& b) { return a.blocks && !b.blocks; });
  return list;
}

std::vector<Remedy> setup_actions(const HostFacts& root, const std::optional<HostFacts>& user) {
  std::vector<Remedy> actions;
  const auto take = [&](const HostFacts& facts, bool everything) {
    for (Remedy& remedy : remedies(facts)) {
      const bool known =
          std::any_of(actions.begin(), actions.end(), [&](const Remedy& a) { return a.why == remedy.why; });
      if (remedy.doer == Doer::setup && !remedy.steps.empty() && !known && (everything || remedy.blocks))
        actions.push_back(std::move(remedy));
    }
  };
  // Nobody's ids and nobody's sessions: without a known user only what keeps every user from running a box.
  if (user) take(*user, !user->any_user);
  take(root, true);
  return actions;
}

}  // namespace pctx
