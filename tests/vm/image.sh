#!/bin/bash
# Makes what the virtual machine boots from: a root image, a kernel and an initrd. Everything comes from
# packages: Debian's, found through this host's own apt configuration, or Ubuntu's for kernel 6.8.
#
#   image.sh [--kernel 6.1|5.10|6.8] [--force]
#
# The result is kept in ${PCTX_VM_CACHE:-${XDG_CACHE_HOME:-~/.cache}/pctx-sandbox-vm}:
#   root-R.ext4          bookworm with pytest, gcc, systemd, AppArmor, Podman with crun and a virtualenv with pandas,
#                        or noble with pytest and AppArmor (the guest's disk, never written to)
#   kernel-K/vmlinux     Debian's cloud kernel or Ubuntu's virtual one, already unpacked (QEMU boots it by its PVH
#                        note, which saves the decompressor's seconds under software emulation)
#   kernel-K/initrd.cpio busybox, the disk's modules and initrd-init.sh
# and is made again only when this script or initrd-init.sh changes.
#
# PCTX_VM_MIRROR and PCTX_VM_SECURITY_MIRROR replace the mirrors found in apt's configuration, PCTX_VM_UBUNTU_MIRROR
# that of Ubuntu. Status 3: the kernel's distribution cannot be had here; the last line says why.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${PCTX_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pctx-sandbox-vm}

tree=$(cd "$here/../.." && pwd)
# A virtualenv as people have them: below a home folder, with a package that is more than Python.
venv=home/tester/venv venv_packages=(pandas==2.2.3)
# Who signs Ubuntu: the package that holds the keys of its archive, by its content.
ubuntu_keyring=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
ubuntu_keyring_sha256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
# What the initrd must load itself: Debian's cloud kernel has its disk, file system and port drivers as modules.
modules=(virtio_pci virtio_blk virtio_console virtio_rng crc32c_generic ext4 overlay)

say() { printf 'image: [%3ds] %s\n' "$SECONDS" "$*" >&2; }
die() { say "error: $*"; exit 1; }
cannot() { say "cannot be made here: $*"; exit 3; }

usage() { sed -n '2,/^set -euo/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

kernel=6.1 force=no inner=no
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=${2:?--kernel needs 6.1, 5.10 or 6.8}; shift ;;
    --force) force=yes ;;
    --inner) inner=yes ;;  # the second half, already in a mount namespace of its own
    -h | --help) usage; exit 0 ;;
    *) die "unknown option '$1'; see --help" ;;
  esac
  shift
done
release=bookworm parts=main kernel_package=linux-image-cloud-amd64
packages=(
  python3 python3-pytest python3-venv gcc libc6-dev strace
  apparmor uidmap procps iproute2 kmod util-linux libseccomp2 ca-certificates tzdata
  systemd-sysv udev dbus dbus-user-session libpam-systemd
  podman crun
)
case $kernel in
  6.1) kernel_release=bookworm ;;
  5.10) kernel_release=bullseye ;;
  6.8)
    release=noble kernel_release=noble parts='main universe' kernel_package=linux-image-virtual
    packages=(
      python3 python3-pytest gcc libc6-dev
      apparmor uidmap procps iproute2 kmod util-linux libseccomp2 ca-certificates tzdata
    )
    ;;
  *) die "unknown kernel '$kernel': 6.1 (bookworm), 5.10 (bullseye, the oldest supported) and 6.8 (Ubuntu 24.04) can be made" ;;
esac

# The hash covers what goes into the images, so that editing a test or run.sh rebuilds nothing.
root_hash=$(sha256sum < "${BASH_SOURCE[0]}" | cut -c1-16)
kernel_hash=$(cat "${BASH_SOURCE[0]}" "$here/initrd-init.sh" | sha256sum | cut -c1-16)
root_image=$cache/root-$release.ext4
root_stamp=$cache/root-$release.stamp
kernel_stamp=$cache/kernel-$kernel/stamp

fresh() { [ "$force" = no ] && [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }

if [ "$inner" = no ]; then
  if fresh "$root_stamp" "$root_hash" && fresh "$kernel_stamp" "$kernel_hash"; then exit 0; fi
  [ "$(id -u)" = 0 ] || die "making the images needs root (debootstrap): run 'sudo env PCTX_VM_CACHE=$cache $0 --kernel $kernel' once"
  missing=
  for tool in debootstrap mkfs.ext4 cpio lz4 xz zstd depmod modprobe busybox; do
    command -v "$tool" > /dev/null || missing="$missing $tool"
  done
  [ -z "$missing" ] || die "not installed:$missing (Debian packages: debootstrap e2fsprogs cpio lz4 xz-utils zstd kmod busybox-static)"
  mkdir -p "$cache"
  # One builder at a time; a second one waits here and then finds fresh stamps.
  exec 9> "$cache/lock"
  flock -n 9 || { say "waiting for another build in $cache"; flock 9; }
  # A mount namespace of its own: the chroot's /proc goes away with us, however we end.
  args=(--inner --kernel "$kernel")
  [ "$force" = no ] || args+=(--force)
  exec unshare --mount --propagation private -- bash "${BASH_SOURCE[0]}" "${args[@]}"
fi

# --- from here on: root, locked, own mount namespace -------------------------------------------------

work=$(mktemp -d "$cache/build.XXXXXX")
trap 'umount -R "$work/root/proc" 2>/dev/null || :; rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

# apt_uri LABEL: the first Debian repository with that label in this host's apt configuration.
apt_uri() {
  # shellcheck disable=SC2016  # apt's fields, not ours
  apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk -F'|' -v label="$1" '$1 == "Debian" && $2 == label { print $3; exit }' |
    while read -r uri; do
      case $uri in
        mirror+file:*) awk '!/^#/ && NF { print $1; exit }' "${uri#mirror+file:}" ;;  # cloud images keep a list
        *) printf '%s\n' "$uri" ;;
      esac
    done
}

# apt's own proxy, for debootstrap (which uses wget) as well as for apt in the chroot.
proxy=$(apt-config dump Acquire::http::Proxy 2>/dev/null | sed -n 's/.*"\(.*\)";$/\1/p' | head -1 || :)
if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export http_proxy=${http_proxy:-$proxy}; fi

in_root() {
  local pass=(PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8)
  local name
  for name in http_proxy https_proxy no_proxy; do [ -z "${!name:-}" ] || pass+=("$name=${!name}"); done
  chroot "$work/root" env -i "${pass[@]}" "$@"
}

# Ubuntu's archive is in nobody's apt configuration on Debian: its keys come with it, checked by their hash.
bootstrap_ubuntu() {
  local script=/usr/share/debootstrap/scripts/noble
  mirror=${PCTX_VM_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu} security=$mirror
  # An older debootstrap does not know the name; the way has not changed since.
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/jammy
  [ -e "$script" ] || cannot "debootstrap knows neither noble nor jammy"
  wget -q --timeout=30 --tries=2 -O "$work/keyring.deb" "$mirror/$ubuntu_keyring" ||
    cannot "no Ubuntu mirror answers (set PCTX_VM_UBUNTU_MIRROR to one that does)"
  echo "$ubuntu_keyring_sha256  $work/keyring.deb" | sha256sum --check --quiet > /dev/null 2>&1 ||
    cannot "the mirror's package of Ubuntu's keys is not the known one"
  dpkg-deb -x "$work/keyring.deb" "$work/keyring"
  say "bootstrapping Ubuntu noble from $mirror"
  debootstrap --variant=minbase --keyring="$work/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg" \
    --components=main,universe noble "$work/root" "$mirror" "$script" > "$work/debootstrap.log" 2>&1 ||
    { tail -5 "$work/debootstrap.log" >&2; die "debootstrap failed for Ubuntu; set PCTX_VM_UBUNTU_MIRROR to a mirror of it"; }
}

# A minimal root with apt, needed both as the guest's root and as the place where kernels are fetched:
# the host's apt may be another distribution's.
bootstrap() {
  [ ! -e "$work/root/etc/debian_version" ] || return 0
  local mirror security
  if [ "$release" = noble ]; then
    bootstrap_ubuntu
  else
    mirror=${PCTX_VM_MIRROR:-$(apt_uri Debian)}
    security=${PCTX_VM_SECURITY_MIRROR:-$(apt_uri Debian-Security)}
    say "bootstrapping Debian $release from ${mirror:-the default mirror of debootstrap}"
    debootstrap --variant=minbase "$release" "$work/root" ${mirror:+"$mirror"} > "$work/debootstrap.log" 2>&1 ||
      { tail -5 "$work/debootstrap.log" >&2; die "debootstrap failed; set PCTX_VM_MIRROR to a Debian mirror"; }
  fi
  main_uri=$(awk '$1 == "deb" { print $2; exit }' "$work/root/etc/apt/sources.list")
  security_uri=$security
  # Snapshots of a mirror are past their Valid-Until date; the host's apt was told so, the chroot's is not.
  apt-config dump 2>/dev/null | grep -E '^Acquire::(Check-Valid-Until|http::Proxy|https::Proxy)' \
    > "$work/root/etc/apt/apt.conf.d/99host" || :
  cp -L /etc/resolv.conf "$work/root/etc/resolv.conf"
  printf '#!/bin/sh\nexit 101\n' > "$work/root/usr/sbin/policy-rc.d"  # packages must not start services here
  chmod 755 "$work/root/usr/sbin/policy-rc.d"
  mount -t proc proc "$work/root/proc"
}

# sources RELEASE: apt source lines of that release, with security fixes where the host has such a mirror.
sources() {
  echo "deb $main_uri $1 $parts"
  [ -z "$security_uri" ] || echo "deb $security_uri $1-security $parts"
}

# unpack_kernel BZIMAGE OUT: the ELF kernel inside, whichever way this kernel was compressed.
unpack_kernel() {
  python3 - "$1" "$2" <<'P'
import subprocess, sys
image = open(sys.argv[1], 'rb').read()
for magic, tool in ((b'\x02\x21\x4c\x18', 'lz4'), (b'\xfd7zXZ\x00', 'xz'), (b'\x28\xb5\x2f\xfd', 'zstd'), (b'\x1f\x8b\x08', 'gzip')):
    start = image.find(magic)
    while start >= 0:
        # The tools complain about the bytes that follow the stream, so their status says nothing.
        out = subprocess.run([tool, '-dc'], input=image[start:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        if out[:4] == b'\x7fELF':
            open(sys.argv[2], 'wb').write(out)
            sys.exit()
        start = image.find(magic, start + 1)
sys.exit('no compressed kernel found in ' + sys.argv[1])
P
}

make_kernel() {
  local dir=$work/root/k/$kernel name version out=$work/kernel
  mkdir -p "$dir"/{lists/partial,cache/archives/partial,none,deb} "$out"
  sources "$kernel_release" > "$dir/sources.list"
  local apt=(-o "Dir::Etc::SourceList=/k/$kernel/sources.list" -o "Dir::Etc::SourceParts=/k/$kernel/none"
    -o "Dir::State::Lists=/k/$kernel/lists" -o "Dir::Cache=/k/$kernel/cache" -o APT::Sandbox::User=root -qq)
  say "fetching $kernel_release's kernel $kernel"
  in_root apt-get "${apt[@]}" update > "$work/apt.log" 2>&1 ||
    { tail -3 "$work/apt.log" >&2; die "kernel $kernel: this mirror has no $kernel_release (set PCTX_VM_MIRROR to one that has)"; }
  name=$(in_root apt-cache "${apt[@]}" depends "$kernel_package" | awk '/Depends: linux-image-/ { print $2; exit }')
  [ -n "$name" ] || die "kernel $kernel: $kernel_release has no $kernel_package"
  version=${name#linux-image-}
  # Ubuntu has the modules in a package of their own.
  if [ "$release" = noble ]; then name="$name linux-modules-$version"; fi
  in_root sh -c "cd /k/$kernel/deb && apt-get ${apt[*]} download $name" ||
    die "kernel $kernel: $name could not be downloaded"
  local package
  for package in "$dir"/deb/*.deb; do dpkg-deb -x "$package" "$dir/x"; done
  unpack_kernel "$dir/x/boot/vmlinuz-$version" "$out/vmlinux"

  say "making the initrd for $version"
  depmod -b "$dir/x" "$version"
  local initrd=$work/initrd file base
  mkdir -p "$initrd"/{bin,dev,proc,sys,mnt,m}
  cp "$(command -v busybox)" "$initrd/bin/busybox"
  local module order=$initrd/m/order
  : > "$order"
  for module in "${modules[@]}"; do
    # A module that is built in has no file: nothing to load, nothing to complain about.
    { modprobe -d "$dir/x" -S "$version" --show-depends "$module" 2>/dev/null || :; } | awk '$1 == "insmod" { print $2 }' |
      while read -r file; do
        base=$(basename "$file")
        base=${base%.xz}
        base=${base%.zst}
        grep -qx "$base" "$order" && continue
        case $file in *.xz) xz -dc "$file" ;; *.zst) zstd -qdc "$file" ;; *) cat "$file" ;; esac > "$initrd/m/$base"
        echo "$base" >> "$order"
      done
  done
  install -m 755 "$here/initrd-init.sh" "$initrd/init"
  (cd "$initrd" && find . | cpio -o -H newc --quiet) > "$out/initrd.cpio"
  echo "$version" > "$out/version"
  echo "$kernel_hash" > "$out/stamp"
  rm -rf "$cache/kernel-$kernel"
  mv "$out" "$cache/kernel-$kernel"
  rm -rf "$work/root/k"
  say "kernel $version is ready"
}

set_up_systemd() {
  mkdir -p "$work/root/var/lib/systemd/linger"
  : > "$work/root/var/lib/systemd/linger/tester"
  cat > "$work/root/etc/systemd/system/pctx-job.service" <<'U'
[Unit]
Description=The job that run.sh handed over
After=multi-user.target apparmor.service user@1000.service
[Service]
Type=exec
ExecStart=/opt/pctx/tests/vm/guest-job.sh
KillMode=process
[Install]
WantedBy=graphical.target
U
  # graphical.target is bookworm's default and comes after multi-user.target, which the job waits for.
  in_root systemctl -q enable pctx-job.service
  # Nothing here may eat the two emulated processors in the middle of a test.
  in_root systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer systemd-tmpfiles-clean.timer getty@tty1.service console-getty.service \
    systemd-networkd-wait-online.service systemd-timesyncd.service > /dev/null 2>&1
}

# From the host's own index, by the tree's uv; a host without one has a machine without it, and its test says so.
make_venv() {
  local uv=$tree/.venv/bin/uv version
  in_root python3 -m venv --without-pip "/$venv"
  version=$(in_root python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [ -x "$uv" ] && "$uv" pip install --quiet --no-cache --only-binary :all: --python-version "$version" \
    --target "$work/root/$venv/lib/python$version/site-packages" "${venv_packages[@]}" > "$work/uv.log" 2>&1; then
    say "a virtualenv with ${venv_packages[*]}"
  else
    say "a virtualenv without ${venv_packages[*]}: $(tail -n 1 "$work/uv.log" 2> /dev/null || echo "no $uv")"
  fi
  chown -R 1000:1000 "$work/root/$venv"
}

make_root() {
  say "installing ${#packages[@]} packages"
  sources "$release" > "$work/root/etc/apt/sources.list"
  in_root apt-get -qq update > "$work/apt.log" 2>&1 || { tail -3 "$work/apt.log" >&2; die "apt-get update failed"; }
  in_root apt-get -qq -y --no-install-recommends install "${packages[@]}" > "$work/apt.log" 2>&1 ||
    { tail -5 "$work/apt.log" >&2; die "apt-get install failed"; }
  in_root apt-get clean

  say "setting up users and services"
  # tester: an ordinary user as distributions make them, with subordinate ids; lingers, so that with
  # systemd its manager (and with it a delegated cgroup) is there without a login.
  # plain: the same without subordinate ids.
  in_root useradd --create-home --uid 1000 --shell /bin/bash tester
  in_root useradd --create-home --uid 1001 --shell /bin/bash plain
  sed -i '/^plain:/d' "$work/root/etc/subuid" "$work/root/etc/subgid"
  if [ "$release" = bookworm ]; then set_up_systemd; make_venv; fi
  echo pctx-vm > "$work/root/etc/hostname"
  printf '127.0.0.1 localhost pctx-vm\n' > "$work/root/etc/hosts"
  printf '/dev/vda / ext4 rw,noatime 0 1\n' > "$work/root/etc/fstab"
  : > "$work/root/etc/machine-id"
  rm -f "$work/root/usr/sbin/policy-rc.d" "$work/root/etc/resolv.conf" "$work/root/etc/apt/apt.conf.d/99host"
  rm -rf "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists" "$work/root/var/log"/*.log "$work/root/usr/share"/{doc,man,locale}
  : > "$work/root/etc/resolv.conf"
  umount "$work/root/proc"

  say "writing ${root_image##*/} ($(du -sm "$work/root" | cut -f1) MiB of files)"
  # Room for tests that fill disks; the file is sparse and QEMU writes to a throw-away overlay.
  # No journal: the machine never comes back after a crash.
  truncate -s 4G "$work/root.ext4"
  mkfs.ext4 -q -F -L pctx-root -O ^has_journal -E lazy_itable_init=1 -d "$work/root" "$work/root.ext4"
  mv "$work/root.ext4" "$root_image"
  echo "$root_hash" > "$root_stamp"
  say "root is ready ($(du -m "$root_image" | cut -f1) MiB on disk)"
}

main_uri='' security_uri=''
if ! fresh "$kernel_stamp" "$kernel_hash"; then bootstrap; make_kernel; fi
if ! fresh "$root_stamp" "$root_hash"; then bootstrap; make_root; fi
