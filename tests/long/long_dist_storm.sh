#!/usr/bin/env bash
# Eight ranks hold a GPT in stages, replicas and slices. One of them is killed (SIGKILL) at random, again and again; the
# launcher starts all again, they go on from the last checkpoint, and the end has the bits of an undisturbed run of
# one process.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/killed_run.sh
. "$(dirname "$0")/../help/killed_run.sh"
unset TANDEM_TEXT TANDEM_MESH
kills=${KILLS:-50}
cat nn/*.c >"$work/text.txt"
cd "$work" || exit 1
job=("$apps/gpt" --data text.txt --preset 'gpt-nano layers=3 heads=4 width=16 context=16' --epochs $((2 + kills))
    --epoch-steps 8 --batch-size 2 --slices 4 --leaves 4 --print-every 1 --save-every-steps 3)

works 'one process' "${job[@]}" --save one.st
grep -a '^fingerprint' out >one
killed_run "$kills" $((kills * 9 / 10)) 8 '^step' "$apps/gpt" --mesh pp=2,dp=2,tp=2 "${job[@]}" --shard optimizer \
    --save part.st --auto-resume
grep -a '^fingerprint' disturbed >many
same 'the fingerprint of one process' one many
! compgen -G 'part.st.tmp*' >/dev/null
tap $? 'no part of a checkpoint is left'
done_testing
