#!/usr/bin/env bash
# Plants the small faults of tests/mutants.txt, one at a time, in a copy of the tree, builds it, and runs
# the tests that should notice. A fault that nobody notices is a failure, unless the table says why it
# must be so; a fault that is noticed in spite of such a reason is one, too. In make test-long.
#
# usage: tests/mutants.sh [NUMBER...]     those alone (default: all)
#        tests/mutants.sh --check         whether each place and each test of the table is there
set -u
cd "$(dirname "$0")/.." || exit 1
tree=$PWD
check=
[ "${1:-}" != --check ] || { check=1 && shift; }
only=" $* "
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/tree
mkdir "$copy"
git ls-files -z --cached --others --exclude-standard | grep -zv '^build/' |
    xargs -0 cp -a --parents -t "$copy"
if ! command -v perl >/dev/null; then
    echo 1..1
    echo 'not ok 1 - planted faults # SKIP perl is missing'
    exit 0
fi
export BUILD=build/cc-nocuda
number=0 failures=0

# make_in_copy TARGET...: quietly; what failed is in $work/make.
make_in_copy() { make -C "$copy" -j2 CUDA=0 "$@" >"$work/make" 2>&1; }

plant() { # once: the text $old in file $1 becomes $new
    OLD=$old NEW=$new perl -0777 -i -e '$t = <>; $n = () = $t =~ /\Q$ENV{OLD}\E/g;
        $t =~ s/\Q$ENV{OLD}\E/$ENV{NEW}/; print $t; END { $? = $n == 1 ? 0 : 1 }' "$1"
}

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

report() { # report GOOD(0/1) WHAT
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $number - $2"
    else
        echo "not ok $number - $2"
        failures=$((failures + 1))
    fi
}

try() { # the fault in $id $what $file $old $new $tests $reason
    [ -n "$id" ] || return 0
    [[ $only == '  ' || $only == *" $id "* ]] || return 0
    local path found
    path=$(cd "$copy" && find . -path ./build -prune -o -path "*/$file" -print)
    if [ ! -f "$copy/$path" ] || ! plant "$copy/$path"; then
        report 1 "$id $what: the place is not there once: $file"
        cp -a "$tree/$path" "$copy/$path" 2>/dev/null
        return
    fi
    local words=$tests
    if [ -n "$check" ]; then
        for found in $words; do
            [ -n "$(cd "$copy" && find tests -name "$found" -o -name "$found.c")" ]
            report $? "$id $what: $found"
        done
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

next_fault() {
    try
    id='' what='' file='' old='' new='' tests='' reason=''
}

id=
while IFS= read -r line; do
    text=${line:2}
    case $line in
    'M '*) next_fault && id=${text%% *} what=${text#* } ;;
    'f '*) file=$text ;;
    '- '*) old=${old:+$old$'\n'}$text ;;
    '+ '*) new=${new:+$new$'\n'}$text ;;
    't '*) tests=$text ;;
    's '*) reason=$text ;;
    esac
done <tests/mutants.txt
next_fault
echo "1..$number"
[ $failures -eq 0 ]
