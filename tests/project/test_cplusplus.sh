#!/usr/bin/env bash
# C++: the lines that README shows, and every macro that takes options (options.cc), by each compiler and
# in each standard from C++17 on, without a warning.
. "$(dirname "$0")/../help/tap.sh"
options=tests/project/options.cc
{ # README's first lines of C, as they stand there
    echo '#include "tandem.h"'
    echo 'void lines(td_dataset *train);'
    echo 'void lines(td_dataset *train) {'
    sed -n '/^```c$/,/^```$/{/^```$/q;/^```/!p}' README.md
    echo '}'
} >"$work/readme.cc"
grep -q 'td_nn_sequential(.*td_nn_linear' "$work/readme.cc" && grep -q 'td_adam(td_parameters(net), .lr' "$work/readme.cc"
tap $? "README's lines are there" "$work/readme.cc"

# shellcheck disable=SC2046
cat $(find tensor autograd nn data dist -name '*.h') | sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' |
    sed -nE 's/^#define (td_\w+)\(.*(TD_OPT[1-5]\(|begin_ = 0|TD_LVALUE\().*/\1/p' | sort -u >"$work/macros"
while read -r macro; do
    grep -qw "$macro" $options || echo "$options lacks $macro"
done <"$work/macros" >"$work/out"
[ ! -s "$work/out" ] && [ "$(wc -l <"$work/macros")" -gt 70 ]
tap $? 'every macro that takes options is compiled' "$work/out"

found=
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || continue
    for standard in 17 20 2b; do
        works "$compiler, C++$standard: README's lines" \
            $compiler -std=c++$standard -Wall -Wextra -Werror -fsyntax-only -I. "$work/readme.cc"
        works "$compiler, C++$standard: options" \
            $compiler -std=c++$standard -Wall -Wextra -Werror -fsyntax-only -I. $options
        found=1
    done
done
[ -n "$found" ] || skip_all 'C++' 'neither g++ nor clang++ is installed'
done_testing
