#!/bin/sh
# Runs the fuzz targets, SECONDS in all, each from its seed corpus tests/corpus/NAME if there is one.
# usage: scripts/fuzz.sh SECONDS build/fuzz/fuzz_NAME...
set -eu
seconds=$1
shift
[ $# -gt 0 ] || { echo 'fuzz: no targets (tests/fuzz_*.c)'; exit 0; }
each=$((seconds / $#))
[ "$each" -gt 0 ] || each=1
for target in "$@"; do
    name=$(basename "$target")
    seeds=tests/corpus/${name#fuzz_}
    found=build/fuzz/corpus/${name#fuzz_}
    mkdir -p "$found"
    [ -d "$seeds" ] || seeds=
    log=build/fuzz/$name.log
    # shellcheck disable=SC2086
    # The same inputs first in every run: what has passed passes again, only further on a faster
    # machine. FUZZ_SEED=0 draws others.
    if "$target" -seed="${FUZZ_SEED:-1}" -max_total_time="$each" -rss_limit_mb=4096 -timeout=60 \
        -artifact_prefix="build/fuzz/$name-" "$found" $seeds >"$log" 2>&1; then
        echo "ok    $name: $(grep -c . "$log") lines, $(tail -n 1 "$log")"
    else
        sed 's/^/      | /' "$log"
        echo "FAIL  $name"
        exit 1
    fi
done
