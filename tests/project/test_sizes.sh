#!/usr/bin/env bash
# make sizes passes here, and fails above the budget: what is too long is named, in a copy of the sources.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
works 'the tree is within its plan' python3 scripts/sizes.py
says 'there are rows' '^  tensor/cpu  '
mkdir "$work/tree"
cp -a scripts tandem.h tensor autograd nn data dist apps "$work/tree"
cd "$work/tree" || exit 1
works 'without git nothing is compared' env GIT_CEILING_DIRECTORIES="$work" python3 scripts/sizes.py

lines() { # lines COUNT: statements
    seq "$1" | sed 's/.*/    x++;/'
}
too_long() { # too_long NAME PATTERN FILE: with standard input as FILE
    mkdir -p "$(dirname "$3")"
    cat >"$3"
    env GIT_CEILING_DIRECTORIES="$work" python3 scripts/sizes.py >"$work/out" 2>&1
    [ $? -eq 1 ] && grep -qE "^FAIL  $2" "$work/out"
    tap $? "$1" "$work/out"
    rm "$3"
}
too_long 'a folder above its plan' 'autograd has [0-9,]* lines of code; its plan is ' autograd/long.c < <(lines 400)
too_long 'a folder without a plan' 'nn/odd/ has no row' nn/odd/odd.c <<<'int x;'
too_long 'a file' 'data/long.c: 501 lines; a file has up to 500' data/long.c < <(seq 501 | sed 's/.*//')
too_long 'a function' 'data/long.c: grow has 62 lines' data/long.c < <(
    echo 'static void grow(int x)'
    echo '{'
    lines 60
    echo '}'
)
too_long 'a struct' 'data/long.h: wide has 21 fields' data/long.h < <(
    echo 'struct wide {'
    seq 20 | sed 's/.*/    int a&[2];/'
    echo '    struct { int one, two; } inner;'
    echo '};'
)
too_long 'a lesson' 'apps/long.c: 201 lines of code' apps/long.c < <(lines 201)
done_testing
