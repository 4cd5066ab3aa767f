#!/bin/bash
# The first process of the initramfs that a BFB brings: puts the operating system on the card's disk, lets bf.cfg
# configure it, says in the rshim log how that goes, and reboots.
export PATH=/usr/bin:/usr/sbin
mkdir -p /proc /sys /dev /tmp /mnt
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev

export CONFIG=/bf.cfg LOG=/tmp/install.log RSHIM=/dev/ttyS1
say() { echo "$*" | tee -a "$LOG" >>"$RSHIM"; }

# In a shell of its own, which any failure ends.
(
  set -e
  while read -r module; do insmod "/modules/$module"; done </modules/order
  # shellcheck disable=SC1090 # what was pushed
  device=$(. "$CONFIG" && echo "${device:-/dev/vda}")
  say "INFO[MISC]: Installing OS image"
  mke2fs -q -t ext4 -O ^has_journal -m 0 "$device"
  mount "$device" /mnt
  tar -C /mnt --zstd -xpf /debian/image.tar.zst
) >>"$LOG" 2>&1
code=$?
if [ $code != 0 ]; then
  say "ERR[MISC]: $(tail -n 1 "$LOG")"
  say "ERR[MISC]: Installation failed"
else
  for place in proc sys dev; do mount --bind /$place /mnt/$place; done
  if bash /installer.sh >>"$LOG" 2>&1; then say "INFO[MISC]: Installation finished"; fi
  # As the vendor's does, which keeps bf.cfg in it too.
  (umask 022 && cat "$LOG" "$CONFIG" >/mnt/root/debian.installation.log)
  for place in proc sys dev; do umount /mnt/$place; done
  umount /mnt || say "ERR[MISC]: Installation failed"
fi
say "INFO[MISC]: Rebooting..."
cat "$LOG"
sync
echo b >/proc/sysrq-trigger
sleep 60
