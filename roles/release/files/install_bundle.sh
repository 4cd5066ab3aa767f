#!/bin/sh
# Releases of Blink from bundles that scripts/bundle packed:
#   install_bundle.sh VENV ID [OPTION of venv…]           install VENV.tar as VENV.releases/ID, and make it current
#   install_bundle.sh --stage VENV ID [OPTION of venv…]   only install it: what runs does not notice
#   install_bundle.sh --activate VENV ID                  make an installed one current; remove all but it and the last
#   install_bundle.sh --back VENV ID                      make the last one current again, as if it had never been left
#
# VENV is a link to the current release and VENV.previous to the one before it; both are replaced by renaming, so there
# is always a whole one. Prints the id of the code, as `blink version` does.
set -eu
case $1 in
--*)
    verb=$1
    shift
    ;;
*) verb=--install ;;
esac
venv=$1 id=$2
shift 2
releases=$venv.releases
new=$releases/$id

refuse() {
    echo "$1" >&2
    exit 1
}

stage() {
    for pip in /usr/share/python-wheels/pip-*.whl; do :; done
    [ -e "$pip" ] || refuse "this machine has no wheel of pip in /usr/share/python-wheels: apt install python3-venv"
    rm -rf "$new" "$releases/unpacked"
    mkdir -p "$releases/unpacked"
    tar -C "$releases/unpacked" -xf "$venv.tar"
    # A bundle's id is the hash of its list of wheels, which has the hash of each.
    case $(sha256sum "$releases/unpacked/requirements.txt") in
    "$id"*) ;;
    *) refuse "$venv.tar is not bundle $id: another run has replaced it, or it is damaged: run this again" ;;
    esac
    "${PYTHON:-python3}" -m venv --without-pip "$@" "$new"
    cd "$releases/unpacked"
    # A release needs no pip once it is installed, so the wheel that the distribution's venv is made with will do.
    "$new/bin/python" "$pip/pip" install --quiet --disable-pip-version-check --no-index --find-links wheels --no-deps \
        --require-hashes --ignore-installed --no-compile --requirement requirements.txt
    cd /
    rm -rf "$releases/unpacked" "$venv.tar"
    # Compile what Blink imports, and not the several thousand files that it never does.
    "$new/bin/python" - <<'EOF'
import contextlib
import importlib
import pkgutil

import blink

for module in pkgutil.walk_packages(blink.__path__, "blink."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # of the other half's packages
            importlib.import_module(module.name)
EOF
    "$new/bin/blink" version | sed 's/.* //' >"$new/.release"
    # Last, as the mark of a whole one.
    echo "$id" >"$new/.bundle"
}

# Point the link $1 to $2 in one step.
point() {
    ln -sfn "$2" "$1.next"
    mv -T "$1.next" "$1"
}

activate() {
    [ -e "$new/.bundle" ] || refuse "release $id is not installed in $releases: deploy it, or stage it first"
    old=$(readlink "$venv" || true)
    [ "$old" != "$new" ] || return 0
    if [ "$verb" = --back ]; then
        rm -f "$venv.previous"
    elif [ -n "$old" ]; then
        point "$venv.previous" "$old"
    fi
    point "$venv" "$new"
    [ "$verb" != --back ] || return 0 # what was left stays for whoever looks into why
    for release in "$releases"/*; do
        [ "$release" = "$new" ] || [ "$release" = "$old" ] || rm -rf "$release"
    done
}

[ "$verb" = --activate ] || [ "$verb" = --back ] || stage "$@"
[ "$verb" = --stage ] || activate
cat "$new/.release"
