#!/usr/bin/env bash
# One of the ranks is killed (SIGKILL) at random, again and again; the launcher starts them all again,
# they go on from the last checkpoint, and the end has the bits of an undisturbed run. KILLS=3: so many
# are tried; where this script has to wait for the machine, so that the run ends before, LEAST=2 must
# have been made.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
kills=${KILLS:-3} least=${LEAST:-2}
RANDOM=${SEED:=$$}
epochs=$((2 + kills)) # of 8 steps each: one to five between two kills, and what goes by meanwhile
job=("$apps/cifar_resnet18" --limit 128 --batch-size 8 --epochs $epochs --print-every 1
    --save-every-steps 4)
cd "$work" || exit 1
few_images

works 'the undisturbed run' "$apps/tdrun" --nproc-per-node 2 "${job[@]}" --save whole
grep '^== step' out | tail -n 1 >whole.loss

: >disturbed # it is read at once
"$apps/tdrun" --nproc-per-node 2 --max-restarts "$kills" "${job[@]}" --save part --auto-resume \
    >>disturbed 2>&1 &
launcher=$!
lines() { grep -cs "$1" disturbed; }
for ((n = 1; n <= kills; n++)); do
    # A step or several after the last start, and then any moment of one.
    wanted=$(($(lines '^== step') + 1 + RANDOM % 5))
    while [ "$(lines '^== step')" -lt $wanted ] && kill -0 $launcher 2>/dev/null; do
        sleep 0.01
    done
    sleep "0.0$((RANDOM % 10))"
    mapfile -t ranks < <(pgrep -P $launcher -f "^$apps/cifar_resnet18") # not the launcher's guard
    [ ${#ranks[@]} -eq 2 ] || break # it is over, or ends just now
    kill -KILL "${ranks[RANDOM % 2]}"
    while [ "$(lines 'all workers start again')" -lt $n ] && kill -0 $launcher 2>/dev/null; do
        sleep 0.01
    done
done
wait $launcher
tap $? "killed again and again, it ends well (SEED=$SEED)" disturbed
made=$(lines 'all workers start again')
test "$made" -ge "$least"
tap $? "it was started again at least $least times of $kills (was $made)" disturbed
# Either as the first that failed or, where a survivor was quicker to leave, by that one's message.
test "$(grep -cE '^tdrun: (rank [01] failed first: signal 9 \(SIGKILL\)|  \| .*rank [01] \(pid [0-9]+\) has died)' disturbed)" -ge "$made"
rc=$?
grep '^tdrun:' disturbed >out
tap $rc 'each time the killed rank was named' out
grep '^== step' disturbed | tail -n 1 >part.loss
same 'the same last loss and accuracy' whole.loss part.loss
same 'the same bits' whole part
! compgen -G 'part.tmp*' >/dev/null
tap $? 'no part of a checkpoint is left'
done_testing
