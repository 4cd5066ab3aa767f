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

rm -rf "$new" "$releases/unpacked"
mkdir -p "$releases/unpacked"
tar -C "$releases/unpacked" -xf "$venv.tar"
python3 -m venv "$@" "$new"
cd "$releases/unpacked"
"$new/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links wheels --no-deps \
    --require-hashes --ignore-installed --requirement requirements.txt
cd /
rm -rf "$releases/unpacked" "$venv.tar"
"$new/bin/blink" version | sed 's/.* //' >"$new/.release"
echo "$id" >"$new/.bundle"

ln -sfn "$new" "$venv.next"
mv -T "$venv.next" "$venv"
for release in "$releases"/*; do
    [ "$release" = "$new" ] || [ "$release" = "$old" ] || rm -rf "$release"
done
cat "$new/.release"
