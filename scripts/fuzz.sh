#!/bin/sh
# Runs the fuzz targets, as many at once as there are processors, each from its seed corpus
# tests/corpus/NAME if there is one: SECONDS each for the readers of what people bring along, pictures
# and configurations, a quarter of that for the others.
# usage: scripts/fuzz.sh SECONDS build/fuzz/fuzz_NAME...
set -eu

# FUZZ_SEED: the same inputs first in every run, so that what has passed passes again, only further on
# a faster machine; 0 draws others.
if [ "$1" = one ]; then
    seconds=$2 target=$3
    name=$(basename "$target")
    seeds=tests/corpus/${name#fuzz_}
    found=build/fuzz/corpus/${name#fuzz_}
    mkdir -p "$found"
    [ -d "$seeds" ] || seeds=
    case $name in
    fuzz_picture | fuzz_config) ;;
    *) seconds=$(((seconds + 3) / 4)) ;;
    esac
    log=build/fuzz/$name.log
    # shellcheck disable=SC2086
    if "$target" -seed="${FUZZ_SEED:-1}" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=60 \
        -artifact_prefix="build/fuzz/$name-" "$found" $seeds >"$log" 2>&1; then
        echo "ok    $name: $(grep -c . "$log") lines, $(tail -n 1 "$log")"
        exit 0
    fi
    sed 's/^/      | /' "$log"
    echo "FAIL  $name"
    exit 1
fi

seconds=$1
shift
[ $# -gt 0 ] || { echo 'fuzz: no targets (tests/fuzz/)'; exit 0; }
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 "$0" one "$seconds"
