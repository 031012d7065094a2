#!/usr/bin/env bash
# Runs test programs and scripts and sums them up.
#
# usage: BUILD=build/cc [SANITIZE=...] [NAMED=1] tests/run.sh PROGRAM... SCRIPT.sh...
#
# A script with a line "# run: plain" starts the same programs again and again, which other tests run
# with sanitizers, too. Under SANITIZE it is left out, unless NAMED says that it was asked for by name,
# or TANDEM_LONG is set (make test-long). What took longest the last time goes first, in this build or
# another one; what has not run yet, scripts before programs.
#
# Three run at a time (JOBS=n), each with no input: on two CPUs one of them mostly waits. Those with a line
# "run: waits" in their source do little else, for time limits and processes of others: two of them run beside
# the three. A program prints TAP: one "ok" or "not ok" line a
# test, after or before a plan, "1..N". Tests that were planned and did not run have failed. Of what
# failed all but the "ok" lines is shown; of what was skipped, the reason. Each line begins with
# how many programs and scripts have ended, of how many. The last line is "N passed, N failed".
set -u
: "${BUILD:?}"
export TEST_TIMEOUT=${TEST_TIMEOUT:-900} # seconds
export BUILD CMOCKA_MESSAGE_OUTPUT=TAP
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:suppressions=$PWD/tests/tsan.supp}
logs=$BUILD/logs
mkdir -p "$logs"

# Sanitizers of these compilers do not start where a kernel spreads addresses further than they know
# (vm.mmap_rnd_bits of 32): fixed addresses, where one may ask for them.
fixed=
[ -z "${SANITIZE:-}" ] || ! setarch -R true 2>/dev/null || fixed='setarch -R'
export fixed

run_one() { # run_one TEST: its output and result line go to $logs
    local test=$1 name log begin seconds cpu rc passed failed skipped planned why at
    name=$(basename "$test")
    log=$logs/$name.log
    begin=$EPOCHREALTIME
    {
        # shellcheck disable=SC2086
        case $test in
        *.sh) timeout "$TEST_TIMEOUT" $fixed bash "$test" </dev/null ;;
        *) timeout "$TEST_TIMEOUT" $fixed "$test" </dev/null ;;
        esac
        rc=$?
    } >"$log" 2>&1
    seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $begin }")
    times >"$logs/$name.cpu" # not in $(...), which would be another process with no children
    cpu=$(awk 'NR == 2 { split($1 $2, t, /[ms]/); printf "%.1f", t[1] * 60 + t[2] + t[3] * 60 + t[4] }' "$logs/$name.cpu")
    echo "$cpu" >"$logs/$name.cpu"
    passed=$(grep -c '^ok ' "$log")
    skipped=$(grep -c '^not ok .*# SKIP' "$log") # so does cmocka write it
    failed=$(($(grep -c '^not ok ' "$log") - skipped))
    planned=$(sed -n 's/^1\.\.\([0-9]*\)$/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
    # Tests that were announced and never came have failed; so has a program that dies otherwise.
    if [ "$planned" -gt $((passed + failed + skipped)) ]; then
        echo "# $name: $((planned - passed - failed - skipped)) of $planned tests did not run" >>"$log"
        failed=$((planned - passed - skipped))
    fi
    if [ "$failed" -eq 0 ] && { [ $rc -ne 0 ] || [ "$planned" -eq 0 ]; }; then
        echo "# $name: ended with code $rc after $planned tests" >>"$log"
        failed=1
    fi
    echo "$passed $failed" >"$logs/$name.count"
    echo "$seconds" >"$logs/$name.seconds"
    [ "$skipped" -eq 0 ] && skipped= || skipped=", $skipped skipped"
    {
        flock 9
        echo "$name" >&9
        at=$(wc -l <"$logs/ended")
    } 9>>"$logs/ended"
    at=$(printf '[%*d/%d]' "${#total}" "$at" "$total")
    if [ "$failed" -eq 0 ]; then
        why=$(sed -n -e 's/^not ok [0-9]* - .*# SKIP \(..*\)/      skipped: \1/p' -e 's/^# skipped: /      skipped: /p' "$log")
        printf '%s ok    %-34s %3d passed%s  %.1f s, CPU %.1f s%s\n' "$at" "$name" "$passed" "$skipped" "$seconds" "$cpu" "${why:+$'\n'$why}"
    else
        {
            printf '%s FAIL  %-34s %3d passed, %d failed%s  %.1f s (code %d)\n' \
                "$at" "$name" "$passed" "$failed" "$skipped" "$seconds" "$rc"
            sed -e '/^ok /d' -e 's/^/      | /' "$log"
        } >"$log.shown"
        cat "$log.shown" # in one piece, so that two failures do not mix
    fi
}
export -f run_one
export logs

is_left_out() {
    [ -n "${SANITIZE:-}" ] && [ -z "${NAMED:-}" ] && [ -z "${TANDEM_LONG:-}" ] &&
        [[ $1 == *.sh ]] && grep -q '^# run: plain$' "$1"
}

waits() { # waits TEST
    local source=$1
    [[ $1 == *.sh ]] || source=$(find tests -name "$(basename "$1").c")
    grep -qE '^(#|//) run: waits$' "$source" 2>/dev/null
}

longest_first() { # longest_first TEST...: sorted
    local test seconds log
    for test; do
        seconds=$([[ $test == *.sh ]] && echo 60 || echo 0)
        for log in build/*/logs/"$(basename "$test")".seconds "$logs/$(basename "$test").seconds"; do
            read -r seconds 2>/dev/null <"$log"
        done
        echo "$seconds $test"
    done | sort -k 1,1nr -s | cut -d ' ' -f 2-
}

tests=()
for test; do
    if is_left_out "$test"; then
        printf -- '--    %-34s without sanitizers, and in make test-long\n' "$(basename "$test")"
    else
        tests+=("$test")
    fi
done
mapfile -t tests < <(longest_first "${tests[@]}")
set -- "${tests[@]}"

rm -f "$logs"/*.count "$logs/ended"
export total=$#
lane() { # lane JOBS TEST...
    local jobs=$1
    shift
    [ $# -eq 0 ] || printf '%s\0' "$@" | xargs -0 -n 1 -P "$jobs" bash -c 'run_one "$1"' run_one
}
working=() waiting=()
for test; do
    if waits "$test"; then waiting+=("$test"); else working+=("$test"); fi
done
trap 'kill 0' INT # what runs in the background does not hear Ctrl-C
lane 2 "${waiting[@]}" &
lane "${JOBS:-3}" "${working[@]}"
wait
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
