#!/usr/bin/env bash
# Runs test programs and scripts and sums them up.
#
# usage: BUILD=build/cc tests/run.sh PROGRAM... SCRIPT.sh...
#
# Two run at a time (JOBS=n), each with no input. A program prints TAP: one "ok" or "not ok" line a
# test. One that dies, or ends without a plan, adds a failure of its own. What failed is shown in
# full. The last line is "N passed, N failed".
set -u
: "${BUILD:?}"
export BUILD CMOCKA_MESSAGE_OUTPUT=TAP
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}
logs=$BUILD/logs
mkdir -p "$logs"

run_one() { # run_one TEST: its output and result line go to $logs
    local test=$1 name log begin seconds rc passed failed
    name=$(basename "$test")
    log=$logs/$name.log
    begin=$EPOCHREALTIME
    case $test in
    *.sh) timeout "${TEST_TIMEOUT:-600}" bash "$test" </dev/null >"$log" 2>&1 ;;
    *) timeout "${TEST_TIMEOUT:-600}" "$test" </dev/null >"$log" 2>&1 ;;
    esac
    rc=$?
    seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $begin }")
    passed=$(grep -c '^ok ' "$log")
    failed=$(grep -c '^not ok ' "$log")
    # Dead, or a non-zero end that no failed test explains, or nothing tested at all.
    if [ $rc -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
        echo "# $name: ended with code $rc" >>"$log"
    elif [ "$((passed + failed))" -eq 0 ]; then
        failed=1
        echo "# $name: no test ran" >>"$log"
    fi
    echo "$passed $failed" >"$logs/$name.count"
    if [ "$failed" -eq 0 ]; then
        printf 'ok    %-34s %3d passed  %6.1f s\n' "$name" "$passed" "$seconds"
    else
        {
            printf 'FAIL  %-34s %3d passed, %d failed  %6.1f s (code %d)\n' \
                "$name" "$passed" "$failed" "$seconds" "$rc"
            sed 's/^/      | /' "$log"
        } >"$log.shown"
        cat "$log.shown" # in one piece, so that two failures do not mix
    fi
}
export -f run_one
export logs

rm -f "$logs"/*.count
printf '%s\0' "$@" | xargs -0 -n 1 -P "${JOBS:-2}" bash -c 'run_one "$1"' run_one
passed=0 failed=0
for test in "$@"; do
    if read -r p f <"$logs/$(basename "$test").count"; then
        passed=$((passed + p)) failed=$((failed + f))
    else
        failed=$((failed + 1))
    fi
done 2>/dev/null
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
