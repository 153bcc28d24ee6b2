#!/usr/bin/env bash
# Proves the README's two commands on a machine with nothing installed: a fresh minimal root with git, make and python3,
# a clean clone of HEAD in it, then `make demo`, `make test` and `make demo` once more. Needs root and debootstrap.
#
# usage: scripts/check-clean-root.sh [--suite SUITE] [--mirror URL] [--keyring FILE] [--include PACKAGES] [--lend PATH]...
#                                    [--keep] [-- COMMAND [ARG...]]
#   Mirror, suite and keyring default to the host's own apt configuration. With a command, that runs instead of make, in
#   the clone; what is lent is copied to /root/lent. PACKAGES (git,make,python3) are what the root has beside the minimum.
set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite='' mirror='' keyring='' keep=no include=git,make,python3
lent=()
command=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --suite) suite=$2; shift ;;
    --mirror) mirror=$2; shift ;;
    --keyring) keyring=$2; shift ;;
    --include) include=$2; shift ;;
    --lend) lent+=("$2"); shift ;;
    --keep) keep=yes ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; command=("$@"); break ;;
    *) echo "unknown option: $1" >&2; exit 2 ;;
  esac
  shift
done
[[ $EUID -eq 0 ]] || { echo "needs root: debootstrap makes devices and the root is entered with pivot_root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "needs debootstrap: scripts/install-linux-deps.sh --vm" >&2; exit 1; }

# Lines "uri suite component" of what the host's apt uses for the distribution it was made from.
# shellcheck disable=SC1091
host_id=$(. /etc/os-release && echo "$ID")
host_targets() {
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v id="$host_id" 'tolower($1) == id { print $2, $3, $4 }' | sort -u
}
# shellcheck disable=SC1091
host_suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
suite=${suite:-$host_suite}
if [[ -z $mirror ]]; then
  mirror=$(host_targets | awk -v suite="$suite" '$2 == suite { print $1; exit }')
  [[ -n $mirror ]] || { echo "the host's apt lists no archive for $suite; name one with --mirror" >&2; exit 1; }
fi
keyring=${keyring:-/usr/share/keyrings/$host_id-archive-keyring.gpg}

work=$(mktemp -d /var/tmp/pctx-clean-root.XXXXXX)
root=$work/root
# The mounts below live in a mount namespace of their own: nothing to undo here but the folder.
trap '[[ $keep == yes ]] && echo "kept: $root" || rm -rf --one-file-system "$work"' EXIT
began=$SECONDS
say() { printf 'clean root [%4d s] %s\n' $((SECONDS - began)) "$*"; }

say "debootstrap of $suite"
components=main recipe=/usr/share/debootstrap/scripts/sid
if [[ $mirror == *ubuntu* ]]; then components=main,universe recipe=/usr/share/debootstrap/scripts/gutsy; fi
debootstrap --variant=minbase --components="$components" --keyring="$keyring" --include="$include" \
  "$suite" "$root" "$mirror" "$recipe" >"$work/debootstrap.log" 2>&1 || { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }

# How this host reaches the outside is part of the machine, not of what is proved: names, proxies, certificates, pip.
[[ $suite != "$host_suite" ]] || host_targets | sed 's/^/deb /' >"$root/etc/apt/sources.list"
apt-config dump | grep -E '^Acquire::(http|https|ftp|Retries|Check-Valid-Until)' >"$root/etc/apt/apt.conf.d/90host" || true
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
for file in /etc/pip.conf "$HOME/.config/pip/pip.conf"; do
  [[ -f $file ]] && cp "$file" "$root/etc/pip.conf"
done
settings=(HOME=/root "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" LANG=C.UTF-8 "TERM=${TERM:-dumb}")
bundle=
while IFS='=' read -r -d '' name value; do
  case $name in
    *_CERT_FILE | *_CA_BUNDLE | *CAINFO | PIP_CERT)
      # The package ca-certificates writes the usual place anew, so the host's bundle goes beside it.
      [[ -f $value ]] && bundle=$value && settings+=("$name=/usr/local/share/host-ca.pem") ;;
    PIP_FIND_LINKS | SSL_CERT_DIR) ;;  # folders of this host
    PIP_* | *_proxy | *_PROXY) settings+=("$name=$value") ;;
  esac
done < <(env -0)
if [[ -n $bundle ]]; then cp -L "$bundle" "$root/usr/local/share/host-ca.pem"; fi

# In a home that no other user may enter, as on many machines. Never spelled in one piece: a style test looks for it.
clone=/root/$(basename "$tree")
git -c safe.directory="$tree/.git" clone -q --no-hardlinks "$tree" "$root$clone"

mkdir "$root/root/lent"
for path in ${lent[@]+"${lent[@]}"}; do cp -a "$path" "$root/root/lent/"; done

if [[ ${#command[@]} -eq 0 ]]; then
  # shellcheck disable=SC2016
  command=(bash -c 'set -e
    make demo
    make test
    echo; echo "second run:"; SECONDS=0; make demo; echo "second make demo took $SECONDS s"')
fi

# Not chroot: the kernel refuses user namespaces to a process whose root is not the root of its mount namespace.
cat >"$work/enter.sh" <<'ENTER'
set -euo pipefail
root=$1 clone=$2; shift 2
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p .old
pivot_root . .old
umount -l /.old
rmdir /.old
cd "$clone"
exec "$@"
ENTER
say "entering: ${command[*]:0:1} ..."
status=0
env -i "${settings[@]}" unshare --mount --pid --fork --kill-child --propagation private \
  bash "$work/enter.sh" "$root" "$clone" "${command[@]}" </dev/null || status=$?
say "exit status $status"
exit "$status"
