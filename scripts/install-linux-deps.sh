#!/usr/bin/env bash
# Installs what building, running and testing pctx-sandbox needs, from the distribution's own packages. Idempotent: what is
# present is not touched, and when nothing is missing the package manager is not called at all.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'TEXT'
usage: scripts/install-linux-deps.sh [--vm] [--fuzz] [--bench] [--lint] [--print | --check]

Installs the packages for building, running and testing pctx-sandbox, and on hosts where AppArmor restricts user
namespaces (Ubuntu 24.04) the profile that lets pctx-sandbox make them.

  --vm      also what the virtual machine tests need (QEMU, a kernel, debootstrap)
  --fuzz    also clang with libFuzzer
  --bench   also the programs that `make bench` compares with
  --lint    also what `make lint` needs
  --print   print the list of packages for this distribution, install nothing
  --check   exit 0 if everything is present, 1 otherwise; install nothing
  --help    this text

Run it as root, or as a user who may use sudo. Supported: apt (Debian, Ubuntu), dnf (Fedora, RHEL), pacman (Arch). On
any other distribution it prints what to install.
TEXT
}

say() { printf '%s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# --- What is needed, by package manager and group ----------------------------------------------------------------------

packages_apt() {
  case $1 in
    default) say g++ cmake ninja-build ccache pkg-config libseccomp-dev libfmt-dev libcli11-dev nlohmann-json3-dev \
                 libc-ares-dev libgtest-dev libbenchmark-dev python3-dev python3-venv uidmap apparmor tzdata git ca-certificates \
                 iproute2 openssl curl podman runc ;;
    vm)      say qemu-system-x86 debootstrap "$(apt_kernel)" busybox-static cpio lz4 zstd erofs-utils kmod ;;
    fuzz)    if [[ $os_id == debian && $os_version == 12 ]]; then say clang-14 libclang-rt-14-dev; else say clang; fi ;;
    bench)   say bubblewrap crun firejail ;;
    lint)    say clang-tidy shellcheck ;;
  esac
}

# The virtual machine boots the distribution's kernel for virtual machines; the two families name it differently.
apt_kernel() { if [[ $os_id == ubuntu ]]; then say linux-image-virtual; else say linux-image-cloud-amd64; fi; }

packages_dnf() {
  case $1 in
    # Fedora and RHEL package static libraries apart, and the release build is static.
    default) say gcc-c++ cmake ninja-build ccache pkgconf-pkg-config libseccomp-devel glibc-static libstdc++-static \
                 fmt-devel cli11-devel json-devel c-ares-devel gtest-devel google-benchmark-devel python3 python3-devel shadow-utils tzdata \
                 git-core ca-certificates make iproute openssl curl podman ;;
    vm)      say qemu-system-x86-core debootstrap kernel-core busybox cpio lz4 zstd erofs-utils kmod ;;
    fuzz)    say clang compiler-rt ;;
    bench)   say bubblewrap crun firejail ;;
    lint)    say clang-tools-extra ShellCheck ;;
  esac
}

packages_pacman() {
  case $1 in
    default) say gcc cmake ninja ccache pkgconf libseccomp fmt cli11 nlohmann-json c-ares gtest benchmark python shadow apparmor tzdata \
                 git ca-certificates make iproute2 openssl curl podman runc ;;
    vm)      say qemu-system-x86 debootstrap linux busybox cpio lz4 zstd erofs-utils kmod ;;
    fuzz)    say clang compiler-rt ;;
    bench)   say bubblewrap crun firejail ;;
    lint)    say clang shellcheck ;;
  esac
}

# --- How each package manager is asked ---------------------------------------------------------------------------------

has_package() {
  case $manager in
    apt)    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]] ;;
    dnf)    rpm -q --whatprovides "$1" >/dev/null 2>&1 ;;
    pacman) pacman -T "$1" >/dev/null 2>&1 ;;
  esac
}

install_line() {
  case $manager in
    apt)    say "apt-get install -y --no-install-recommends $*" ;;
    dnf)    say "dnf install -y --setopt=install_weak_deps=False $*" ;;
    pacman) say "pacman -S --needed --noconfirm $*" ;;
  esac
}

install_packages() {
  local -a command
  read -ra command <<<"$(install_line "$@")"
  if [[ $manager == apt ]]; then
    # The lists of a fresh image are empty or old; both make the install fail with "Unable to locate package".
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive "${command[@]}"
  else
    as_root "${command[@]}"
  fi
}

as_root() {
  if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

# True as root, and where sudo works without asking or there is a terminal on which it can ask.
can_be_root() {
  [[ $EUID -eq 0 ]] && return 0
  command -v sudo >/dev/null || return 1
  sudo -n true 2>/dev/null && return 0
  [[ -t 0 ]] && sudo -v
}

# --- AppArmor ----------------------------------------------------------------------------------------------------------

restriction=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
profile_target=/etc/apparmor.d/pctx-sandbox

# The shipped profile names the installed paths only; this tree's two are added here, since they differ everywhere.
profile_text() {
  local text launcher
  text=$(<"$here/packaging/apparmor/pctx-sandbox")
  for launcher in "$here/.venv/bin/pctx-sandbox" "$here/build/release/pctx-sandbox"; do
    text=${text/$'\n'profile /$'\n'"@{pctx_launchers} += \"$launcher\""$'\n'profile }
  done
  printf '%s\n' "$text"
}

profile_wanted() { [[ -r $restriction && $(<"$restriction") == 1 ]]; }
profile_present() { [[ -r $profile_target && $(<"$profile_target") == "$(profile_text)" ]]; }

install_profile() {
  say "AppArmor restricts user namespaces on this host: installing $profile_target, which lets pctx-sandbox of this tree make them."
  profile_text | as_root tee "$profile_target" >/dev/null
  as_root apparmor_parser -r "$profile_target"
}

# --- Main --------------------------------------------------------------------------------------------------------------

groups=(default)
mode=install
for argument in "$@"; do
  case $argument in
    --vm | --fuzz | --bench | --lint) groups+=("${argument#--}") ;;
    --print) mode=print ;;
    --check) mode=check ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown option: $argument" ;;
  esac
done

os_field() { sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" /etc/os-release 2>/dev/null || true; }
os_id=$(os_field ID)
os_version=$(os_field VERSION_ID)
manager=
for candidate in apt-get:apt dnf:dnf pacman:pacman; do
  if command -v "${candidate%%:*}" >/dev/null; then manager=${candidate##*:}; break; fi
done

list=()
for group in "${groups[@]}"; do
  read -ra some <<<"$("packages_${manager:-apt}" "$group" | tr '\n' ' ')"
  list+=("${some[@]}")
done

if [[ $mode == print ]]; then
  printf '%s\n' "${list[@]}"
  exit 0
fi
if [[ -z $manager ]]; then
  say "This distribution (${os_id:-unknown}) has none of apt, dnf and pacman. Install the equivalents of these Debian packages:"
  printf '  %s\n' "${list[@]}"
  [[ $mode == check ]] && exit 0  # Nothing here can tell; the build will.
  exit 1
fi

missing=()
for package in "${list[@]}"; do
  has_package "$package" || missing+=("$package")
done
needs_profile=no
if profile_wanted && ! profile_present; then needs_profile=yes; fi

if [[ ${#missing[@]} -eq 0 && $needs_profile == no ]]; then
  [[ $mode == check ]] || say "all ${#list[@]} packages are present"
  exit 0
fi
[[ $mode == check ]] && exit 1

if ! can_be_root; then
  if [[ ${#missing[@]} -gt 0 ]]; then
    die "${#missing[@]} packages are missing and this user is neither root nor allowed to use sudo; have an administrator run: $(install_line "${missing[@]}")"
  fi
  die "AppArmor restricts user namespaces and this user is neither root nor allowed to use sudo; have an administrator run: $0"
fi
if [[ ${#missing[@]} -gt 0 ]]; then
  say "installing ${#missing[@]} of ${#list[@]} packages: ${missing[*]}"
  case $os_id in rhel | centos | rocky | almalinux)
    say "some of these are only in CRB and EPEL: if dnf does not find one, enable both (docs/guides/hosts.md) and start again" ;;
  esac
  install_packages "${missing[@]}"
fi
if [[ $needs_profile == yes ]]; then install_profile; fi
