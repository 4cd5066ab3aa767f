#!/bin/sh
# Prints the password of a vault, as Ansible asks for it: fleet-vault-client.sh --vault-id NAME
#
#   export ANSIBLE_VAULT_IDENTITY_LIST=fleet@inventory/fleet-vault-client.sh
#
# It asks the desktop's keyring, where there is one, else a file that only you may read. Put your own store's command here.
set -eu
name=default
while [ $# -gt 0 ]; do
    case $1 in
    --vault-id) name=$2 && shift ;;
    esac
    shift
done
if command -v secret-tool >/dev/null && secret-tool lookup blink-vault "$name" 2>/dev/null; then
    exit 0
fi
file=${BLINK_VAULT_DIR:-$HOME/.config/blink-vault}/$name
if ! [ -f "$file" ]; then
    echo "no password for vault $name: write it to $file (mode 0600), or: secret-tool store --label=Blink blink-vault $name" >&2
    exit 1
fi
if [ -n "$(find "$file" -perm /077)" ]; then
    echo "$file may be read by others: chmod 0600 $file" >&2
    exit 1
fi
cat "$file"
