#!/bin/bash
# Runs the tests, or a command, in a virtual machine that has what this host may lack: cgroup v2, AppArmor,
# with --kernel 5.10 the oldest supported kernel and, with --kernel 6.8, Ubuntu 24.04, which reserves user
# namespaces for programs with an AppArmor profile.
#
#   run.sh                      everything: the four machines below, one after the other
#   run.sh [--kernel 6.1|5.10|6.8] [--init direct|systemd] [--suites vm|limits|all] [--limit SECONDS] [-- COMMAND [ARG...]]
#
# Without a command: the suites of guest-suites.py, as root and as an ordinary user. The last line is
# "N passed, N failed, N skipped" and the status is the guest's. A command runs as root in the tree's copy.
#
#   --init direct    no service manager: cgroup v2, nothing delegated (the default)
#   --init systemd   systemd as pid 1, user managers with delegated cgroups
#   --suites vm      tests/vm/guest, and with systemd what the Podman backend promises, with crun
#   --suites limits  the same and the limit tests of tests/security (the default)
#   --suites all     the same and all of tests/integration and tests/security: hours without kvm
#   --limit SECONDS  the machine is killed after this time (default 6000)
#
# PCTX_SANDBOX_BIN  the binary under test (default: the tree's .venv/bin/pctx-sandbox)
# PCTX_VM_ACCEL     tcg (default: works everywhere, about 20 times slower) or kvm
# PCTX_VM_CPUS, PCTX_VM_MEMORY   2 and 2048 (MiB)
# PCTX_VM_CACHE     where the images are kept (image.sh)
# PCTX_VM_LOG       keep the machine's console (kernel messages) in this file
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$here/../.." && pwd)
cache=${PCTX_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pctx-sandbox-vm}

say() { printf 'vm: [%3ds] %s\n' "$SECONDS" "$*" >&2; }
die() { say "error: $*"; exit 125; }
usage() { sed -n '2,/^set -euo/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

# Without a word about which machine, all of them. The limit tests run where root and an undelegated user
# are; what the other machines add is in tests/vm/guest.
if [ $# -eq 0 ]; then
  passed=0 failed=0 skipped=0 worst=0
  output=$(mktemp "${TMPDIR:-/tmp}/pctx-vm.$$.XXXXXX")
  trap 'rm -f "$output"' EXIT
  for machine in "--init direct --suites limits" "--init systemd --suites vm" "--kernel 5.10 --init direct --suites vm" \
    "--kernel 6.8 --init direct --suites vm"; do
    say "machine: $machine"
    status=0
    # shellcheck disable=SC2086  # the words of $machine are options
    "${BASH_SOURCE[0]}" $machine | tee "$output" || status=$?
    if counts=$(tail -n 1 "$output" | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'); then
      read -r p _ f _ s _ <<< "$counts"
      passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
      [ "$status" = 0 ] || [ "$f" -gt 0 ] || failed=$((failed + 1))
    else
      failed=$((failed + 1))  # a machine that did not come to its end is a failure of its own
    fi
    [ "$status" -le "$worst" ] || worst=$status
  done
  say "all machines"
  echo "$passed passed, $failed failed, $skipped skipped"
  exit "$worst"
fi

words=("$@")
kernel=6.1 init=direct suites=limits limit=6000 command=()
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=${2:?--kernel needs 6.1, 5.10 or 6.8}; shift ;;
    --init) init=${2:?--init needs direct or systemd}; shift ;;
    --suites) suites=${2:?--suites needs vm, limits or all}; shift ;;
    --limit) limit=${2:?--limit needs seconds}; shift ;;
    -h | --help) usage; exit 0 ;;
    --) shift; command=("$@"); break ;;
    *) die "unknown option '$1'; see --help" ;;
  esac
  shift
done
case $init in direct | systemd) ;; *) die "unknown init '$init': direct and systemd are known" ;; esac
[ "$kernel $init" != "6.8 systemd" ] || die "the machine with kernel 6.8 has no systemd"
case $suites in vm | limits | all) ;; *) die "unknown suites '$suites': vm, limits and all are known" ;; esac
case $limit in '' | *[!0-9]*) die "--limit takes whole seconds, not '$limit'" ;; esac

command -v qemu-system-x86_64 > /dev/null || die "qemu-system-x86_64 is not installed (Debian package qemu-system-x86)"
binary=${PCTX_SANDBOX_BIN:-$tree/.venv/bin/pctx-sandbox}
if [ ! -x "$binary" ]; then
  # A command may want to look at the machine only; the suites cannot do without.
  [ ${#command[@]} -gt 0 ] || die "no binary at $binary: run 'make' first, or set PCTX_SANDBOX_BIN"
  binary=
fi
made=0
"$here/image.sh" --kernel "$kernel" || made=$?
if [ "$made" = 3 ]; then
  # Not this tree's fault, and nothing that was seen: a skip, which the caller counts.
  echo "skipped: the machine with kernel $kernel: its distribution cannot be had here"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
[ "$made" = 0 ] || die "no image for kernel $kernel"
case $kernel in 6.8) release=noble ;; *) release=bookworm ;; esac

# What a killed run.sh (-9) left: the directory names its owner.
for old in "${TMPDIR:-/tmp}"/pctx-vm.*; do
  owner=${old##*/pctx-vm.}
  if [ -O "$old" ] && ! [ -d "/proc/${owner%%.*}" ]; then rm -rf "$old"; fi
done
work=$(mktemp -d "${TMPDIR:-/tmp}/pctx-vm.$$.XXXXXX")
machine='' monitor=''
# shellcheck disable=SC2317,SC2329  # called by the trap
cleanup() {
  [ -z "$monitor" ] || kill "$monitor" 2> /dev/null || :
  # TERM goes to timeout(1), which passes it on to QEMU.
  if [ -n "$machine" ]; then kill "$machine" 2> /dev/null || :; wait "$machine" 2> /dev/null || :; fi
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The tree under test travels as a tar file on the second disk.
stage=$work/stage
mkdir -p "$stage/.venv/bin"
# src too: some tests compare the program with its own tables.
for part in tests packaging python examples docs src scripts README.md; do
  [ ! -e "$tree/$part" ] || tar -C "$tree" --exclude=__pycache__ --exclude=.pytest_cache -cf - "$part" | tar -C "$stage" -xf -
done
# The one package that callers of @sandbox need.
for package in "$tree"/.venv/lib/python3*/site-packages/cloudpickle; do
  [ ! -d "$package" ] || cp -r "$package" "$stage/python/"
done
[ -z "$binary" ] || cp -L "$binary" "$stage/.venv/bin/pctx-sandbox"
[ ${#command[@]} -eq 0 ] || printf '%q ' "${command[@]}" > "$stage/command"
echo "$suites" > "$stage/suites"
echo "$limit" > "$stage/limit"
tar -C "$stage" --owner=0 --group=0 --mode=u+rwX,go=rX -cf "$work/tree.tar" .
rm -rf "$stage"

case ${PCTX_VM_ACCEL:-tcg} in
  tcg) accel=(-accel "tcg,thread=multi,tb-size=512" -cpu max) ;;
  kvm) accel=(-accel kvm -cpu host) ;;
  *) die "PCTX_VM_ACCEL is tcg or kvm, not '$PCTX_VM_ACCEL'" ;;
esac
# tsc=unstable: emulated processors do not agree on their cycle counters.
# no_timer_check: a starved emulator fails the kernel's test of its timer, and with it the boot.
# panic=-1 and -no-reboot: a kernel panic ends QEMU at once instead of at the limit.
cmdline="console=ttyS0 root=/dev/vda rw quiet loglevel=4 panic=-1 reboot=t tsc=unstable mitigations=off"
cmdline+=" no_timer_check random.trust_cpu=on apparmor=1 security=apparmor systemd.show_status=0 pctx.init=$init"

# The guest's output comes through a port of its own, not mixed with kernel messages; a FIFO, because
# QEMU's stdio device takes the end of our stdin for a hang-up.
mkfifo "$work/output"
cat "$work/output" &
reader=$!
console=$work/console
silence=100
: > "$work/status"

say "starting kernel $(cat "$cache/kernel-$kernel/version"), init $init, ${PCTX_VM_ACCEL:-tcg}, at most $limit s"
# --pdeathsig: even kill -9 of this script leaves no machine behind.
TMPDIR=$work setpriv --pdeathsig TERM timeout --kill-after=5 "$limit" setpriv --pdeathsig KILL \
  qemu-system-x86_64 -M q35 "${accel[@]}" -m "${PCTX_VM_MEMORY:-2048}" -smp "${PCTX_VM_CPUS:-2}" \
  -nodefaults -no-user-config -display none -no-reboot \
  -kernel "$cache/kernel-$kernel/vmlinux" -initrd "$cache/kernel-$kernel/initrd.cpio" -append "$cmdline" \
  -drive "file=$cache/root-$release.ext4,format=raw,if=none,id=root,snapshot=on,cache=unsafe" -device virtio-blk-pci,drive=root \
  -drive "file=$work/tree.tar,format=raw,if=none,id=tree,readonly=on" -device virtio-blk-pci,drive=tree \
  -device virtio-rng-pci -device virtio-serial-pci \
  -chardev "file,id=output,path=$work/output" -device virtserialport,chardev=output,name=pctx.output \
  -chardev "file,id=status,path=$work/status" -device virtserialport,chardev=status,name=pctx.status \
  -chardev "file,id=console,path=$console" -serial chardev:console < /dev/null 2> "$work/qemu.log" &
machine=$!
# The guest writes a dot to its console every few seconds. One that stays silent hangs as a whole, which software
# emulation does once in a while on a busy host: that is no result, so such a machine gets a second try.
(
  exec > /dev/null 2>&1
  while sleep 5; do
    if [ $(($(date +%s) - $(stat -c %Y "$console" || date +%s))) -gt "$silence" ]; then
      : > "$work/silent"
      kill "$machine"
      exit
    fi
  done
) &
monitor=$!
ended=0
wait "$machine" || ended=$?
machine=''
kill "$monitor" 2> /dev/null || :
wait "$monitor" 2> /dev/null || :
monitor=''
# A QEMU that never started has not opened the FIFO, and its reader still waits for somebody who does.
exec {writer}<> "$work/output"
exec {writer}>&-
wait "$reader" || :
[ -z "${PCTX_VM_LOG:-}" ] || cp "$console" "$PCTX_VM_LOG"

status=$(tr -cd '0-9' < "$work/status")
if [ -n "$status" ]; then
  [ "$status" = 0 ] || say "the guest's status is $status"
  exit "$status"
fi
if [ -e "$work/silent" ] && [ -z "${PCTX_VM_SECOND_TRY:-}" ]; then
  say "the machine hangs (no sign of life for $silence s): trying once more"
  cleanup
  PCTX_VM_SECOND_TRY=1 exec "${BASH_SOURCE[0]}" "${words[@]}"
fi
{ cat "$work/qemu.log"; tail -n 60 "$console" | tr -d '\r'; } >&2
if [ -e "$work/silent" ]; then die "the machine hangs: no sign of life for $silence s, for the second time"; fi
case $ended in
  124 | 137) say "error: the machine was killed: not finished after $limit s (--limit)"; exit 124 ;;
  *) die "the machine ended (QEMU's status $ended) before the job did; its last console lines are above" ;;
esac
