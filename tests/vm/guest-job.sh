#!/bin/bash
# Runs in the virtual machine, as root: the command that run.sh was given, or the suites; reports the
# status and powers off.
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export PCTX_SANDBOX_BIN=/opt/pctx/.venv/bin/pctx-sandbox PCTX_TEST_SLOW=${PCTX_TEST_SLOW:-20} PCTX_VM=1
export PYTHONDONTWRITEBYTECODE=1

# port NAME: QEMU's port of that name; udev's links are not there without systemd.
port() {
  local entry
  for entry in /sys/class/virtio-ports/*; do
    if [ "$(cat "$entry/name" 2> /dev/null)" = "$1" ]; then echo "/dev/${entry##*/}"; return; fi
  done
}
exec > "$(port pctx.output)" 2>&1 < /dev/null
cd /opt/pctx || exit
# An address beside loopback's, for servers that boxes reach by an allow-list. There is no network to be had.
ip address add 10.77.0.1/32 dev lo && ip route add 192.0.2.0/24 dev lo src 10.77.0.1
# Signs of life for run.sh, and what hangs if something does, while somebody can still be told.
(while sleep 5; do printf . > /dev/console; done) > /dev/null 2>&1 &
(
  limit=$(cat limit)
  [ "$limit" -gt 60 ] || exit
  sleep $((limit - 30))
  echo "guest: 30 s before the limit these still run:"
  ps -eo pid,ppid,user,stat,etimes,wchan:24,args --no-headers | awk '$2 != 2 && $1 != 2'
) &
echo "guest: up after $(cut -d' ' -f1 /proc/uptime) s, kernel $(uname -r)"
if [ -e command ]; then
  bash -c "$(cat command)"
else
  python3 tests/vm/guest-suites.py
fi
status=$?
echo "$status" > "$(port pctx.status)"
# -ff: the disk is thrown away, nothing is worth a clean shutdown of emulated minutes.
poweroff -ff > /dev/null 2>&1
