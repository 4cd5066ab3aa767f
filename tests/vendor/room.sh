#!/bin/sh
# Run one throwaway machine until it is powered off: room.sh DIRECTORY DISK SEED
#
# Its root is this machine's own; SEED lies over it, and DISK, on another file system, takes every change and keeps it.
# systemd is PID 1. DIRECTORY is seen inside as /vendor; there is no network. Call it in a mount namespace of its own.
set -eu
directory=$1
disk=$2
seed=$3
mkdir -p "$disk/upper" "$disk/work" "$disk/root"
mount -t overlay -o "lowerdir=$seed:/,upperdir=$disk/upper,workdir=$disk/work" overlay "$disk/root"
# shellcheck disable=SC2329 # the trap calls it
pull_the_plug() {
  kill -KILL "$nspawn" 2>/dev/null || true
  wait "$nspawn" || true
  umount --lazy "$disk/root"
  exit 0
}
trap pull_the_plug TERM
while :; do
  systemd-nspawn --quiet --register=no --private-network --link-journal=no --console=pipe --keep-unit \
    --machine="$(basename "$directory")" --directory="$disk/root" --bind="$directory:/vendor" --boot -- \
    --unit=basic.target &
  nspawn=$!
  echo $nspawn >"$directory/pid"
  code=0
  wait $nspawn || code=$?
  rm -f "$directory/pid"
  [ $code = 133 ] || break # 133 is a reboot
done
umount --lazy "$disk/root"
exit "$code"
