#!/bin/sh
# Format, then suspicious code, in the C files of the project (clang-format, clang-tidy).
# usage: [LINT_NODES=20000] scripts/lint.sh [COMPILER FLAGS...]
set -eu
for tool in clang-format clang-tidy; do
    if ! command -v $tool >/dev/null 2>&1; then
        echo "lint: $tool is missing: make deps-dev" >&2
        exit 1
    fi
done
scripts/format.sh --check
echo 'ok    format'
python3 scripts/words.py
python3 scripts/statics.py

# A reader who follows a call lands in the middle of a room: each file says first what it is.
without=$(find apps autograd bench data dist examples nn tensor tests \( -name '*.c' -o -name '*.cc' -o -name '*.cu' \) \
    -type f | while read -r file; do
    case $(head -n 1 "$file") in '/*'*) ;; *) echo "$file" ;; esac
done)
if [ -n "$without" ]; then
    printf '%s: begins without a comment that says what the file is\n' $without
    echo 'FAIL  opening comments'
    exit 1
fi
echo 'ok    opening comments'

long=$(awk '/^## / { version = $0; lines = 0 } ++lines == 41 { print version }' CHANGELOG.md)
if [ -n "$long" ]; then
    echo "CHANGELOG.md: more than 40 lines of: $long; breaks go into docs/migrating.md"
    echo 'FAIL  changes'
    exit 1
fi

# Those of C ask the program's locale for the decimal point: "0,5".
if grep -nE '\b(strto(d|f|ld)|atof)\(|scanf\([^;]*"[^"]*%[0-9*]*l?[efgaEFGA]' -r --include='*.[ch]' --include='*.cc' \
    --include='*.inc' apps autograd data dist examples nn tensor | grep -vE '^tensor/system/number\.c:|td_strtod'; then
    echo 'FAIL  these read numbers in the locale: use tensor/system/number.h'
    exit 1
fi
echo 'ok    numbers'

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Test and fuzz sources are left to the compilers' warnings: cmocka's macros trouble the analyzer.
# What includes mpi.h can be looked at only where MPI is.
mpi=$(mpicc --showme:compile 2>/dev/null) && without='^$' || without='^dist/comm/engines/p2p/mpi/'
export LINT_NODES="${LINT_NODES:-225000}"
if find apps autograd data dist examples nn tensor -name '*.c' | grep -v "$without" | sort |
    xargs -P 2 -n 1 sh -c '
        flags=$1; shift
        clang-tidy --quiet "$@" -- $flags -std=c11 -D_GNU_SOURCE -I. \
            -Xclang -analyzer-config -Xclang max-nodes="$LINT_NODES" 2>/dev/null
    ' lint "$* $mpi" >"$log"; then
    echo 'ok    clang-tidy'
else
    cat "$log"
    echo 'FAIL  clang-tidy'
    exit 1
fi
