# The vendor's installer, as far as bf.cfg has to do with it: what it offers, which hooks it calls, and in which order.
# Source it under bash, with CONFIG (bf.cfg), LOG, and RSHIM (what takes lines for the rshim log).
# shellcheck shell=bash
log() { echo "$*" | tee -a "$LOG" >>"$RSHIM"; }
fail() {
  log "$*"
  log "ERR[MISC]: Installation failed"
  exit 1
}
# shellcheck disable=SC1090 # what was pushed
. "$CONFIG"
for hook in bfb_pre_install bfb_modify_os bfb_custom_action1 bfb_post_install; do
  if declare -F $hook >/dev/null; then $hook; fi
done
