#!/usr/bin/env bash
# Eight ranks hold a GPT in stages, replicas and slices. One of them is killed (SIGKILL) at random, again and again; the
# launcher starts all again, they go on from the last checkpoint, and the end has the bits of an undisturbed run of
# one process.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID TANDEM_TEXT TANDEM_MESH
export OMP_NUM_THREADS=1
kills=${KILLS:-50}
RANDOM=${SEED:=$$}
cat nn/*.c >"$work/text.txt"
cd "$work" || exit 1
job=("$apps/gpt" --data text.txt --preset 'gpt-nano layers=3 heads=4 width=16 context=16' --epochs $((2 + kills))
    --epoch-steps 8 --batch-size 2 --slices 4 --leaves 4 --print-every 1 --save-every-steps 3)

works 'one process' "${job[@]}" --save one.st
grep -a '^fingerprint' out >one
: >disturbed # it is read at once
"$apps/tdrun" --nproc-per-node 8 --mesh pp=2,dp=2,tp=2 --max-restarts "$kills" "${job[@]}" --shard optimizer \
    --save part.st --auto-resume >>disturbed 2>&1 &
launcher=$!
lines() { grep -acs "$1" disturbed; }
for ((n = 1; n <= kills; n++)); do
    wanted=$(($(lines '^step') + 1 + RANDOM % 5))
    while [ "$(lines '^step')" -lt $wanted ] && kill -0 $launcher 2>/dev/null; do
        sleep 0.01
    done
    sleep "0.0$((RANDOM % 10))"
    mapfile -t ranks < <(pgrep -P $launcher -f "^$apps/gpt")
    [ ${#ranks[@]} -eq 8 ] || break # it is over, or ends just now
    kill -KILL "${ranks[RANDOM % 8]}"
    while [ "$(lines 'all workers start again')" -lt $n ] && kill -0 $launcher 2>/dev/null; do
        sleep 0.01
    done
done
wait $launcher
tap $? "killed again and again, it ends well (SEED=$SEED)" disturbed
made=$(lines 'all workers start again')
test "$made" -ge $((kills * 9 / 10))
tap $? "it was started again at least $((kills * 9 / 10)) times (was $made)" disturbed
grep -a '^fingerprint' disturbed >many
same 'the fingerprint of one process' one many
! compgen -G 'part.st.tmp*' >/dev/null
tap $? 'no part of a checkpoint is left'
done_testing
