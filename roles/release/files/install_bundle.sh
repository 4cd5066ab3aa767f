#!/bin/sh
# Install a bundle as a release of its own and make it the current one: install_bundle.sh VENV ID [OPTION OF venv…]
#
# VENV.tar is the bundle that scripts/bundle packed. VENV becomes a link to VENV.releases/ID, replaced in one step; the
# release it pointed to before is kept, older ones are removed. Prints the id of the code, as `blink version` does.
set -eu
venv=$1 id=$2
shift 2
releases=$venv.releases
new=$releases/$id
old=$(readlink "$venv" || true)

for pip in /usr/share/python-wheels/pip-*.whl; do :; done
if ! [ -e "$pip" ]; then
    echo "this machine has no wheel of pip in /usr/share/python-wheels: apt install python3-venv" >&2
    exit 1
fi
rm -rf "$new" "$releases/unpacked"
mkdir -p "$releases/unpacked"
tar -C "$releases/unpacked" -xf "$venv.tar"
python3 -m venv --without-pip "$@" "$new"
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
echo "$id" >"$new/.bundle"

ln -sfn "$new" "$venv.next"
mv -T "$venv.next" "$venv"
for release in "$releases"/*; do
    [ "$release" = "$new" ] || [ "$release" = "$old" ] || rm -rf "$release"
done
cat "$new/.release"
