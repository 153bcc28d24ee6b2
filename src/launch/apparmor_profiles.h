// The two files of AppArmor profiles, in the program so that `setup` needs nothing else. packaging/apparmor holds the
// same texts as files; tests/style/test_apparmor_profiles.py compares them.
#pragma once

#include <string_view>

namespace pctx {

// clang-format off
inline constexpr std::string_view kLauncherProfileText = R"profile(# Lets pctx-sandbox make user namespaces where the kernel reserves them for named programs
# (kernel.apparmor_restrict_unprivileged_userns = 1, the default since Ubuntu 24.04). It confines nothing: what a guest may
# do is decided by the box. `sudo pctx-sandbox setup` installs it; by hand: copy it to /etc/apparmor.d/pctx-sandbox, then
# `apparmor_parser -r /etc/apparmor.d/pctx-sandbox`. Whoever may write to a program named here may make user namespaces.

abi <abi/4.0>,

include <tunables/global>

@{pctx_launchers} = /usr/local/bin/pctx-sandbox /usr/bin/pctx-sandbox /opt/pctx-sandbox/bin/pctx-sandbox
@{pctx_launchers} += /usr/local/libexec/pctx-sandbox/pctx-sandbox /opt/pctx-sandbox/pctx-sandbox

profile pctx-sandbox @{pctx_launchers} flags=(unconfined) {
  userns,

  include if exists <local/pctx-sandbox>
}
)profile";

inline constexpr std::string_view kGuestProfileText = R"profile(# What a guest may do after its exec, on top of the box's namespaces, Landlock rules and system call filter: the profiles attach
# to no program, pctx-sandbox enters them by name. Install them with `sudo pctx-sandbox setup`, or by hand: copy it to
# /etc/apparmor.d/pctx-sandbox-guest, then `apparmor_parser -r /etc/apparmor.d/pctx-sandbox-guest`.

# The oldest that has everything named below: Debian 12 and Ubuntu 22.04 ship no later one.
abi <abi/3.0>,

include <tunables/global>

# The box's root is mounted in no place that the host knows, and a guest may go on using what it has deleted.
profile pctx-sandbox-guest flags=(attach_disconnected, mediate_deleted) {
  # Which files there are, and which of them are read-only, is decided by the mounts. A program run by a guest stays in here.
  file,
  deny /proc/** wl,
  deny /sys/** wl,

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
  signal (send) peer=pctx-sandbox-guest,
  signal (receive),
  ptrace (read, trace) peer=pctx-sandbox-guest,
  ptrace (readby, tracedby),

  deny capability,
  deny mount,
  deny remount,
  deny umount,
  deny pivot_root,

  include if exists <local/pctx-sandbox-guest>
}

# A Zygote, and the Workers that it forks: the same, but for the rights that it needs to fork into their boxes. It has them in the
# user namespaces of those boxes and nowhere else, and a Worker has given them up before it is lent.
profile pctx-sandbox-zygote flags=(attach_disconnected, mediate_deleted) {
  file,
  deny /proc/** wl,
  deny /sys/** wl,

  network inet stream,
  network inet dgram,
  network inet6 stream,
  network inet6 dgram,
  network unix,
  unix,
  deny network inet raw,
  deny network inet6 raw,
  deny network packet,

  signal (send) peer=pctx-sandbox-zygote,
  signal (receive),
  ptrace (read, trace) peer=pctx-sandbox-zygote,
  ptrace (readby, tracedby),

  capability sys_admin,
  capability sys_chroot,
  capability setpcap,
  deny mount,
  deny remount,
  deny umount,
  deny pivot_root,

  include if exists <local/pctx-sandbox-guest>
}

# The processes that make boxes, until one of them becomes the guest, and the first process of each box. The root that they build
# has the host's names in it, so that names cannot tell the two apart: which files there are is decided by the mounts.
profile pctx-sandbox-launch flags=(attach_disconnected, mediate_deleted) {
  file,
  deny /proc/kcore rwklx,
  deny /proc/kmsg rwklx,
  deny /proc/sysrq-trigger rwklx,
  deny /sys/kernel/security/** wl,

  # Rights in the user namespaces of boxes: no other is needed to make one.
  capability checkpoint_restore,
  capability net_admin,
  capability net_bind_service,
  capability net_raw,
  capability setgid,
  capability setpcap,
  capability setuid,
  capability sys_admin,
  capability sys_chroot,
  capability sys_resource,
  mount,
  remount,
  umount,
  pivot_root,
  change_profile -> pctx-sandbox-guest,
  change_profile -> pctx-sandbox-zygote,

  # What sets up a box's network and notes what it tries.
  network inet stream,
  network inet dgram,
  network inet6 stream,
  network inet6 dgram,
  network inet raw,
  network inet6 raw,
  network netlink raw,
  network packet dgram,
  network unix,
  unix,

  signal (send) peer=pctx-sandbox-launch,
  signal (send) peer=pctx-sandbox-guest,
  signal (send) peer=pctx-sandbox-zygote,
  signal (receive),
  ptrace (read) peer=pctx-sandbox-launch,
  ptrace (read) peer=pctx-sandbox-zygote,
  ptrace (readby, tracedby),

  include if exists <local/pctx-sandbox-guest>
}

# The container of the Podman backend where root starts it, in place of Podman's own profile, which refuses mounts: the Broker in
# there makes boxes. It has no capability itself; those named here are its boxes' in their user namespaces, before a guest runs.
profile pctx-sandbox-container flags=(attach_disconnected, mediate_deleted) {
  file,
  deny /proc/kcore rwklx,
  deny /proc/kmsg rwklx,
  deny /proc/sysrq-trigger rwklx,
  # Not all of them: boxes set user/max_* and kernel/ns_last_pid of their own /proc, which before it is in its place is
  # seen as /sys.
  deny /proc/sys/{fs,vm}/** wl,
  deny /proc/sys/kernel/[^n]** wl,
  deny /sys/{block,bus,class,dev,devices,firmware,module,power}/** wl,
  # Of /sys/fs the container's own cgroup is left, which the Broker divides among boxes.
  deny /sys/fs/[^c]** wl,
  deny /sys/fs/c[^g]** wl,
  deny /sys/kernel/[^n]** wl,
  deny /sys/firmware/** r,
  deny /sys/kernel/security/** r,

  # Beyond what a guest has: what sets up a box's network and notes what it tries, in the box's own network namespace.
  network inet stream,
  network inet dgram,
  network inet6 stream,
  network inet6 dgram,
  network inet raw,
  network inet6 raw,
  network netlink raw,
  network packet dgram,
  network unix,
  unix,

  signal (send) peer=pctx-sandbox-container,
  signal (receive),
  ptrace (read, trace) peer=pctx-sandbox-container,
  ptrace (readby, tracedby),

  capability,
  deny capability sys_module,
  deny capability sys_rawio,
  deny capability sys_boot,
  deny capability sys_time,
  deny capability syslog,
  deny capability mac_admin,
  deny capability mac_override,
  mount,
  remount,
  umount,
  pivot_root,

  include if exists <local/pctx-sandbox-guest>
}
)profile";
// clang-format on

}  // namespace pctx
