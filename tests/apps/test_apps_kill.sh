#!/usr/bin/env bash
# One of the ranks is killed (SIGKILL) at random, again and again; the launcher starts them all again,
# they go on from the last checkpoint, and the end has the bits of an undisturbed run. KILLS=3: so many
# are tried; where this script has to wait for the machine, so that the run ends before, LEAST=2 must
# have been made.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/killed_run.sh
. "$(dirname "$0")/../help/killed_run.sh"
kills=${KILLS:-3} least=${LEAST:-2}
epochs=$((2 + kills)) # of 8 steps each: one to five between two kills, and what goes by meanwhile
job=("$apps/cifar_resnet18" --limit 128 --batch-size 8 --epochs $epochs --print-every 1
    --save-every-steps 4)
cd "$work" || exit 1
few_images

works 'the undisturbed run' "$apps/tdrun" --nproc-per-node 2 "${job[@]}" --save whole
grep '^== step' out | tail -n 1 >whole.loss

killed_run "$kills" "$least" 2 '^== step' "$apps/cifar_resnet18" "${job[@]}" --save part --auto-resume
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
