#!/usr/bin/env bash
# Plants the small faults of tests/mutants.txt, one at a time, in a copy of the tree, builds it, and runs
# the tests that should notice. A fault that nobody notices is a failure, unless the table says why it
# must be so; a fault that is noticed in spite of such a reason is one, too. In make test-long.
#
# usage: tests/mutants.sh [NUMBER...]     those alone (default: all)
#        tests/mutants.sh --check         whether each place and each test of the table is there
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/help/mutants.sh
tree=$PWD
export BUILD=build/cc-nocuda

# make_in_copy TARGET...: quietly; what failed is in $work/make.
make_in_copy() { make -C "$copy" -j2 CUDA=0 "$@" >"$work/make" 2>&1; }

notices() { # notices TEST...: whether one of them fails
    local test program
    for test; do
        program=$BUILD/tests/$test
        [[ $test == *.sh ]] && program=$(cd "$copy" && find tests -name "$test")
        (cd "$copy" && NAMED=1 TEST_TIMEOUT=200 tests/run.sh "$program") >"$work/ran" 2>&1 || return 0
    done
    return 1
}

# What the tests need beside themselves, by name.
targets() {
    local test
    for test; do
        case $test in
        *.sh) echo "tests TESTS=${test%.sh}" ;;
        *) echo "$BUILD/tests/$test" ;;
        esac
    done
}

try() {
    is_wanted "$id" || return 0
    local path
    path=$(cd "$copy" && find . -path ./build -prune -o -path "*/$file" -print)
    if [ ! -f "$copy/$path" ] || ! replace "$copy/$path" "$old" "$new"; then
        report 1 "$id $what: the place is not there once: $file"
        cp -a "$tree/$path" "$copy/$path" 2>/dev/null
        return
    fi
    if [ -n "$check" ]; then
        check_tests
        cp "$tree/$path" "$copy/$path"
        return
    fi
    # shellcheck disable=SC2046,SC2086
    if ! make_in_copy $(targets $words); then
        report 1 "$id $what: does not build"
        tail -n 5 "$work/make" | sed 's/^/# /'
    elif notices $words; then
        [ -z "$reason" ]
        report $? "$id $what: noticed"
    else
        [ -n "$reason" ]
        report $? "$id $what: ${reason:-nobody notices}"
    fi
    cp "$tree/$path" "$copy/$path"
}

each_fault tests/mutants.txt try
finish
