#!/usr/bin/env bash
# The script of make gpu-check, on the emulated GPU (make EMULATE=1 test): chosen stages alone, and the
# calls of a visit.
. "$(dirname "$0")/../help/tap.sh"
[[ ${BUILD:-build/cc} == *-emulated* ]] || skip_all 'the check of a GPU' 'make EMULATE=1 test'
export EMULATE=1 GPU_CHECK_OUT=$work/check PYTHON=none
STAGES=bits works 'one stage alone' bash tests/gpu/check.sh
says 'it is in the table' '^ok  *bits '
says 'with those that it needs, and no others' '^3 stages, 0 failed'
STAGES='bits nonsense' bash tests/gpu/check.sh >"$work/out" 2>&1
tap $(($? != 1)) 'a word that no stage has is a failure' "$work/out"
says 'and is named' '^FAILED  *nonsense .*no stage has this word'
RESULTS=$work/results STAGES=bits works 'a call of a visit' bash tests/gpu/visit.sh 2
says 'says first what it needs' '^needs: an H100'
tap "$([ -f "$work/results/visit2/table.txt" ] && [ -f "$work/results/visit2/logs.tar.gz" ]; echo $?)" 'and leaves its table and logs'
done_testing
