# Planted faults, for tests/mutants.sh and tests/cuda/mutants.sh, which source this in the repository's folder:
# a copy of the tree ($copy), and a table's faults. Of each id, what, file, old, new, words (the tests that
# must notice) and reason are set.
# shellcheck shell=bash disable=SC2034
if ! command -v perl >/dev/null; then
    echo 1..1
    echo 'not ok 1 - planted faults # SKIP perl is missing'
    exit 0
fi
check=
[ "${1:-}" != --check ] || { check=1 && shift; }
only=" $* " number=0 failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/tree
mkdir "$copy"
git ls-files -z --cached --others --exclude-standard | grep -zv '^build/' |
    xargs -0 cp -a --parents -t "$copy"

report() { # report GOOD(0/1) WHAT
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $number - $2"
    else
        echo "not ok $number - $2"
        failures=$((failures + 1))
    fi
}

is_wanted() { [[ $only == '  ' || $only == *" $1 "* ]]; } # is_wanted NUMBER

replace() { # replace FILE OLD NEW: false unless OLD is there once
    OLD=$2 NEW=$3 perl -0777 -i -e '$t = <>; $n = () = $t =~ /\Q$ENV{OLD}\E/g;
        $t =~ s/\Q$ENV{OLD}\E/$ENV{NEW}/; print $t; END { $? = $n == 1 ? 0 : 1 }' "$1"
}

check_tests() { # whether the tests of the fault are there
    local test
    for test in $words; do
        [ -n "$(find tests -name "$test" -o -name "$test.c")" ]
        report $? "$id $what: $test"
    done
}

each_fault() { # each_fault TABLE FUNCTION
    local line text
    id=
    while IFS= read -r line; do
        text=${line:2}
        case $line in
        'M '*)
            [ -z "$id" ] || "$2"
            id=${text%% *} what=${text#* } file='' old='' new='' words='' reason=''
            ;;
        'f '*) file=$text ;;
        '-'*) old=${old:+$old$'\n'}$text ;;
        '+'*) new=${new:+$new$'\n'}$text ;;
        't '*) words=$text ;;
        's '*) reason=$text ;;
        esac
    done <"$1"
    [ -z "$id" ] || "$2"
}

finish() {
    echo "1..$number"
    [ $failures -eq 0 ]
}
