#!/usr/bin/env bash
# Plants the faults of tests/cuda/mutants.txt in a copy of the tree, builds it once for the emulated GPU,
# and turns them on one at a time: a test must fail. In make test-long.
#
# usage: tests/cuda/mutants.sh [NUMBER...]     those alone (default: all)
#        tests/cuda/mutants.sh --check         whether each place and each test of the table is there
# TANDEM_EMULATE_SEED=N: chance of the emulated GPU (0: none).
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/help/mutants.sh

plant() { # the text $old in $file becomes $new, where FAULT is the number's
    if grep -q td_mutant_on "$copy/$file"; then :; else
        sed -i '1i #ifdef __cplusplus\nextern "C"\n#endif\nint td_mutant_on(int number);' "$copy/$file"
    fi
    replace "$copy/$file" "$old" "${new//FAULT/td_mutant_on($id)}"
}

ids=()
declare -A whats tests reasons
caught=0
plant_all() {
    ids+=("$id")
    whats[$id]=$what tests[$id]=$words reasons[$id]=$reason
    plant || report 1 "$id $what: the place is not there once: $file"
    [ -z "$check" ] || check_tests
}
each_fault tests/cuda/mutants.txt plant_all
if [ -n "$check" ]; then
    finish
    exit
fi

cat >"$copy/tests/emulate/mutant.c" <<'END'
/* Whether a planted fault is on. */
#include <stdlib.h>

int td_mutant_on(int number);
int td_mutant_on(int number)
{
    static int on = -1;
    if (on < 0) {
        const char *wanted = getenv("TD_MUTANT");
        on = wanted != NULL ? atoi(wanted) : 0;
    }
    return on == number;
}
END
# TANDEM_LONG, empty: copies of more than 4 GB, but not all orders of captured ranks.
export BUILD=build/cc-emulated TANDEM_LONG=
names=$(printf '%s\n' "${tests[@]}" | tr ' ' '\n' | sort -u | tr '\n' ' ')
# shellcheck disable=SC2086
if ! make -C "$copy" -j2 EMULATE=1 OPTIMIZE='-O1 -g0' tests TESTS="${names//.sh/}" >"$work/log" 2>&1; then
    report 1 'does not build'
    tail -n 5 "$work/log" | sed 's/^/# /'
    echo 1..1
    exit 1
fi

fails() { # fails MUTANT TEST...: whether one of them does; a program ends at its first failure
    local mutant=$1 test program
    shift
    for test; do
        program=$BUILD/tests/$test
        [[ $test == *.sh ]] && program=$(find tests -name "$test")
        (cd "$copy" && TD_MUTANT=$mutant TANDEM_TEST_DEVICE=cuda:0 TEST_TIMEOUT=1200 NAMED=1 CMOCKA_TEST_ABORT=1 \
            tests/run.sh "$program") >"$work/ran" 2>&1 || return 0
    done
    return 1
}

# shellcheck disable=SC2086
[ "$only" != '  ' ] || { ! fails 0 $names; report $? 'without a fault all tests pass'; }
for id in "${ids[@]}"; do
    is_wanted "$id" || continue
    # shellcheck disable=SC2086
    if fails "$id" ${tests[$id]}; then
        caught=$((caught + 1))
        report 0 "$id ${whats[$id]}: noticed"
    else
        [ -n "${reasons[$id]}" ]
        report $? "$id ${whats[$id]}: ${reasons[$id]:-not noticed}"
    fi
done
echo "# $caught of ${#ids[@]} noticed"
finish
