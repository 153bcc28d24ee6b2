#!/bin/bash
# pid 1 without systemd: the file systems every distribution mounts, cgroup v2 with nothing delegated to
# anyone, then the job. This is what a rootless user has who gets no cgroups lent.
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

mount -t tmpfs -o mode=755,nosuid,nodev run /run
# /tmp stays on the disk, as Debian has it: before 6.3 a memory file system has no id-mapped mounts.
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev shm /dev/shm
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
mount -t securityfs securityfs /sys/kernel/security
ln -sfn /proc/self/fd /dev/fd
ip link set lo up
hostname pctx-vm

/opt/pctx/tests/vm/guest-job.sh
# The job powers off; should it have died instead, so do we, and run.sh sees that no status came.
poweroff -f
