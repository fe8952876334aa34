#!/bin/sh
# Backs up a directory into a store each night, and keeps a week. Somebody is told if that fails, or if it does not happen:
#
#   PATH=/opt/tiered/bin:/usr/bin:/bin                                             # crontab -e
#   TIERED_CONFIG=/etc/tiered.yaml
#   17 3 * * *   /opt/backup.sh run /srv/photos backups/host.web1/objects/photos
#   17 9 * * *   /opt/backup.sh check 30 backups/host.web1/objects/photos          # better on another machine
#
# Once, before the first night:   /opt/backup.sh begin backups/host.web1/objects/photos
# To bring back what was there on Wednesday, the third day:   tiered sync backups/host.web1/objects/photos/3 restored
#
# ALERT: a command that is called with a subject, and reads from stdin what went wrong. Without one, root gets a mail.
# PAUSES: how many seconds to wait before each further attempt, if something did not answer.
set -u

mail_root() { mail -s "$1" root; }
ALERT=${ALERT:-mail_root} PAUSES=${PAUSES-60 300 1800}
command=${1:-} objects=${3:-${2:-}}
case "$command $#" in
    "begin 2" | "run 3" | "check 3") ;;
    *) echo "usage: $0 begin OBJECTS | run DIRECTORY OBJECTS | check HOURS OBJECTS" >&2; exit 2 ;;
esac

# Whatever ends this script is a failure, a signal too, unless it comes to its last line.
alert() {
    trap - EXIT
    told="$1
$(tail -n 20 "$work/log" 2> /dev/null)"
    echo "$told" >&2
    echo "$told" | $ALERT "backup: $command of $objects on $(uname -n) failed" || echo "nobody could be told by '$ALERT'" >&2
    rm -rf "$work"
    exit 1
}
work=""
trap 'alert "it ended too early"' EXIT
trap 'alert "a signal ended it"' HUP INT TERM
work=$(mktemp -d) || alert "there is no place for temporary files"

# Exit codes 4 and 5: something did not answer. 7: a file changed meanwhile. The same command does what is left.
attempt() {
    for pause in $PAUSES none; do
        "$@" > "$work/log" 2>&1
        code=$?
        case "$code $pause" in [457]" none") ;; [457]" "*) sleep "$pause"; continue ;; esac
        return $code
    done
}

succeeded_at() {
    echo "$1" > "$work/at"
    attempt tiered put "$objects/succeeded" "$work/at" || alert "tiered put ended with $?"
}

# A store that is not there is not made anew: its disk may not be mounted.
last_success() {
    attempt tiered get "$objects/succeeded" --output "$work/at" || alert "tiered get ended with $?: is the store there, and begun?"
}

case $command in
    begin) succeeded_at 0 ;;
    run)
        directory=$2
        [ -d "$directory" ] || alert "there is no directory $directory"
        exec 9< "$directory"
        flock -n 9 || alert "another run is still under way"
        last_success
        attempt tiered sync "$directory" "$objects/$(date +%u)" --delete || alert "tiered sync ended with $?"
        attempt tiered recover --once || alert "tiered recover ended with $?"
        succeeded_at "$(date +%s)"
        ;;
    check)
        last_success
        hours=$((($(date +%s) - $(cat "$work/at")) / 3600))
        [ "$hours" -le "$2" ] || alert "the last success was $hours hours ago"
        ;;
esac
trap - EXIT
rm -rf "$work"
