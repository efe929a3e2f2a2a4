#!/bin/sh
# Puts the daemon under systemd, or takes all of it away again, and prints each thing that it does.
#
#   install.sh install BIN      BIN: the folder of mens-sup, such as /opt/mens-supervisor/.venv/bin
#   install.sh uninstall [--delete-runs]
set -eu

user=mens-supervisor
units="mens-supervisor.service mens-supervisor-job.socket mens-supervisor-job@.service"
where=/etc/systemd/system
options=/etc/default/mens-supervisor
state=/var/lib/mens-supervisor
here=$(dirname "$(realpath "$0")")

say() { printf '%s\n' "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "This needs root: sudo make ${1:-install}-systemd"
command -v systemctl >/dev/null || fail "There is no systemctl here: this machine does not run systemd. Use mens-sup daemon by itself."

reload() {
  if systemctl daemon-reload 2>/dev/null; then say "systemd has read its units again"
  else say "systemd does not run here now; it reads the units when it starts"; fi
}

stop_all() {
  for unit in mens-supervisor.service mens-supervisor-job.socket; do
    if systemctl is-active --quiet "$unit" 2>/dev/null; then
      systemctl stop "$unit" && say "stopped $unit"
    fi
  done
}

case ${1:-} in
install)
  bin=$(realpath -s "${2:?the folder of mens-sup}")
  [ -x "$bin/mens-sup" ] || fail "$bin/mens-sup is not there. Run \`make install\` first, as the user whose folder this is."
  if getent passwd $user >/dev/null; then say "user $user is there already"
  else
    useradd --system --user-group --home-dir $state --no-create-home --shell /usr/sbin/nologin $user
    say "made user and group $user"
  fi
  # A login of its own group alone, as the unit will have.
  if ! setpriv --reuid $user --regid $user --clear-groups "$bin/mens-sup" --help >/dev/null 2>&1; then
    fail "User $user cannot run $bin/mens-sup. A folder above it, or Python itself, is closed to others: put the project under /opt or /srv with a Python that all may use (make install PYTHON=/usr/bin/python3), or open the folders with chmod o+x. Nothing but the user was made."
  fi
  for unit in $units; do
    sed "s|@BIN@|$bin|g" "$here/$unit" >"$where/.$unit.new"
    chmod 644 "$where/.$unit.new"
    mv "$where/.$unit.new" "$where/$unit"
    say "wrote $where/$unit"
  done
  if [ -e $options ]; then say "$options is left as it is"
  else
    printf '%s\n' '# Options of `mens-sup daemon`, such as --http 9100 for pages and metrics on this machine.' 'MENS_SUP_OPTIONS=' >$options
    chmod 640 $options
    chgrp $user $options
    say "wrote $options"
  fi
  reload
  systemctl enable --quiet mens-supervisor-job.socket mens-supervisor.service
  say "enabled mens-supervisor.service and mens-supervisor-job.socket: they start with the machine"
  say "State and runs go to $state, caches to /var/cache/mens-supervisor; systemd makes them at the first start."
  say "Now:  systemctl start mens-supervisor"
  say "Who may ask the daemon, besides root:  usermod -aG $user ${SUDO_USER:-USER}  (then log in again)"
  ;;
uninstall)
  if [ -n "$(ls -A $state/runs 2>/dev/null)" ] && [ "${2:-}" != --delete-runs ]; then keep=yes; else keep=; fi
  stop_all
  for unit in mens-supervisor.service mens-supervisor-job.socket; do
    [ -e "$where/$unit" ] && systemctl disable --quiet "$unit" && say "disabled $unit"
  done
  for unit in $units; do
    if [ -e "$where/$unit" ]; then rm -r "$where/$unit"; say "removed $where/$unit"; fi
    if [ -d "$where/$unit.d" ]; then rm -r "$where/$unit.d"; say "removed $where/$unit.d"; fi
  done
  reload
  for path in $options /run/mens-supervisor /run/mens-supervisor-job.sock /var/cache/mens-supervisor; do
    if [ -e "$path" ]; then rm -r "$path"; say "removed $path"; fi
  done
  if [ -n "$keep" ]; then
    find $state -mindepth 1 -maxdepth 1 ! -name runs -exec rm -r {} +
    chown -R root:root $state
    say "removed the queue; KEPT $state/runs, which holds $(ls $state/runs | wc -l) run(s), now root's."
    say "To delete them as well:  make uninstall-systemd RUNS=delete"
  elif [ -e $state ]; then rm -r $state; say "removed $state"; fi
  if getent passwd $user >/dev/null; then userdel $user; say "removed user $user"; fi
  if getent group $user >/dev/null; then groupdel $user; say "removed group $user"; fi
  ;;
*) fail "usage: $0 install BIN | uninstall [--delete-runs]" ;;
esac
