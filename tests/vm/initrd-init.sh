#!/bin/busybox sh
# shellcheck shell=dash
# First program of the virtual machine: loads the disk's drivers, unpacks the tree under test from the
# second disk (a plain tar file, which needs no file system driver and cannot be half mounted), and
# hands over to the init that pctx.init= names.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev

stop() {
  $B echo "initrd: $1" > /dev/console
  $B poweroff -f
}

for m in $($B cat /m/order); do $B insmod "/m/$m" 2> /dev/null; done

# Devices appear a moment after their driver.
n=0
while [ ! -b /dev/vda ] || [ ! -b /dev/vdb ]; do
  n=$((n + 1))
  [ $n -lt 200 ] || stop "no disk after 20 s"
  $B sleep 0.1
done

$B mount -t ext4 -o rw,noatime /dev/vda /mnt || stop "cannot mount the root disk"
$B mkdir -p /mnt/opt/pctx
$B tar -xf /dev/vdb -C /mnt/opt/pctx || stop "cannot unpack the tree under test"

init=/sbin/init
for word in $($B cat /proc/cmdline); do
  case $word in pctx.init=direct) init=/opt/pctx/tests/vm/init-direct.sh ;; esac
done
$B mount --move /dev /mnt/dev
$B mount --move /proc /mnt/proc
$B mount --move /sys /mnt/sys
exec $B switch_root /mnt "$init"
