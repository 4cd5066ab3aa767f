#!/bin/sh
# Run one throwaway machine until it is powered off: room.sh DIRECTORY DISK SEED
#
# Its root is this machine's own; SEED lies over it, and DISK, on another file system, takes every change and keeps it.
# systemd is PID 1. DIRECTORY is seen inside as /vendor; there is no network. Call it in a mount namespace of its own.
set -eu
directory=$1
disk=$2
seed=$3

# systemd takes the control group that it finds itself in for its own, and everything below.
groups=
for hierarchy in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
  if [ -e "$hierarchy/cgroup.procs" ]; then
    group=$hierarchy/blink-room-$$
    mkdir "$group"
    echo $$ >"$group/cgroup.procs"
    groups="$groups $group"
  fi
done

mkdir -p "$disk/upper" "$disk/work" "$disk/root"
mount -t overlay -o "lowerdir=$seed:/,upperdir=$disk/upper,workdir=$disk/work" overlay "$disk/root"
leave() {
  umount --lazy "$disk/root"
  for group in $groups; do
    echo $$ >"${group%/*}/cgroup.procs"
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}
# shellcheck disable=SC2329 # the trap calls it
pull_the_plug() {
  # The machine's first process, and with it all others; killing nspawn would leave them to run on.
  kill -KILL "$(pgrep -o -P "$nspawn")" 2>/dev/null || kill -KILL "$nspawn" || true
  wait "$nspawn" || true
  leave
  exit 0
}
trap pull_the_plug TERM
while :; do
  systemd-nspawn --quiet --register=no --private-network --link-journal=no --console=pipe --keep-unit \
    --machine="blink-$$" --hostname="$(basename "$directory")" --directory="$disk/root" \
    --bind="$directory:/vendor" --boot -- --unit=basic.target &
  nspawn=$!
  echo $nspawn >"$directory/pid"
  code=0
  wait $nspawn || code=$?
  rm -f "$directory/pid"
  [ $code = 133 ] || break # 133 is a reboot
done
leave
exit "$code"
