#!/usr/bin/env bash
# tests/run.sh: what it counts, where it says it is, and what it shows of a test that fails.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
printf 'echo "ok 1 - a"; echo 1..1\n' >"$work/good.sh"
printf 'echo "ok 1 - a"; echo "not ok 2 - b"; echo "# why"; echo 1..3; exit 1\n' >"$work/bad.sh"
BUILD=$work JOBS=1 SANITIZE='' tests/run.sh "$work"/{good,bad}.sh >"$work/out" 2>&1
tap $(($? != 1)) 'a run with a failed test fails' "$work/out"
says '  where it is, and of how many' '^\[1/2\] (ok|FAIL) '
says '  to the last' '^\[2/2\] (ok|FAIL) '
says '  what failed' '^ +\| not ok 2 - b$'
says '  what did not run has failed' '^ +\| # bad.sh: 1 of 3 tests did not run$'
says '  the sum' '^2 passed, 2 failed$'

# The lessons' programs have their names in apps/ after make test, too.
links=$(find apps -maxdepth 1 -type l -exec test -e {} \; -print | wc -l)
[ "$links" -ge 20 ]
tap $? "apps/NAME: $links links"
done_testing
