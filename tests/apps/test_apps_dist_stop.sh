#!/usr/bin/env bash
# Ctrl-C and SIGTERM with several processes, in mid-epoch, by every way of starting; and going on
# afterwards to the same bits. CIFAR-10 where TANDEM_DATA names it, synthetic pictures otherwise.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
! why=$(no_terminal) || skip_all 'Ctrl-C on a terminal' "${why#*: }"
data=$PWD/data
few="--limit 128 --batch-size 8 --epochs 2 --print-every 1"
cd "$work" || exit 1
few_images

last_line() { grep -h '^== step' "$1" | tail -n 1; }

# shellcheck disable=SC2086
works 'the undisturbed run' "$apps/cifar_resnet18" --spawn 2 $few --save whole
cp out whole.txt

interrupted() { # interrupted HOW COMMAND...: Ctrl-C after a few steps, then on to the end
    local how=$1 rc
    shift
    rm -f part
    # shellcheck disable=SC2086
    $terminal '== step: \[  3/8\] \[1/2\]' 1 "$@" --save part >out 2>&1
    rc=$?
    test $rc -eq 130
    tap $? "$how, Ctrl-C: code 130 (was $rc)" out
    says "$how: rank 0 says that it stops" 'stopping after this step'
    test "$(grep -c 'stopping after this step' out)" -eq 1
    tap $? "$how: only rank 0 does" out
    says "$how: it says how to go on" 'stopped after step [0-9]+ of epoch [123]; go on with --resume part'
    ! grep -qiE 'error|failed|died' out
    tap $? "$how: nobody complains" out
    works "$how: it goes on" "$@" --resume part --save part
    says "$how: it says from where" '^resumed from part after step [0-9]+ of epoch [123]$'
    test "$(last_line out)" = "$(last_line whole.txt)"
    tap $? "$how: to the same loss and accuracy" out
    same "$how: and the same bits" whole part
}

# shellcheck disable=SC2086
interrupted spawned "$apps/cifar_resnet18" --spawn 2 $few
# shellcheck disable=SC2086
interrupted 'by tdrun' "$apps/tdrun" --nproc-per-node 2 "$apps/cifar_resnet18" $few

# A signal to one rank alone, as a batch system may send it: all stop after the same step.
rm -f out # a line of the run before would be taken for this one's
# shellcheck disable=SC2086
"$apps/cifar_resnet18" --spawn 2 $few --save one >out 2>&1 &
parent=$!
await_line '== step: \[  2/8\]' out
kill -TERM "$(pgrep -P $parent | tail -n 1)"
wait $parent
rc=$?
test $rc -ne 0
tap $? "SIGTERM to one rank: not the code of success ($rc)" out
says 'the checkpoint is there' 'go on with --resume one'
# shellcheck disable=SC2086
works 'it goes on' "$apps/cifar_resnet18" --spawn 2 $few --resume one --save one
same 'to the same bits' whole one

# Another number of processes: the same part of the epoch, and it says nothing untrue.
# shellcheck disable=SC2086
$terminal '== step: \[  4/8\] \[1/2\]' 1 "$apps/cifar_resnet18" --spawn 2 $few --save other >out 2>&1
works 'with one process instead of two' "$apps/cifar_resnet18" --spawn 1 --resume other --save other
says 'it goes on in the same part of the epoch' '^resumed from other after step (([89]|1[0-9]) of epoch 1|[0-9]+ of epoch 2|0 of epoch 3)$'
says 'with another batch, which it says' '^1 ranks, and 2 when it was saved: together their batches have [0-9]+ samples, not [0-9]+$'
says 'to the end' '^== step: \[ 16/16\] \[2/2\] '

# A lesson knows nothing of signals: Ctrl-C ends all its processes.
ln -s "$data" data
$terminal 'Epoch 3,' 1 "$apps/wine_ddp_spawn" 100000 >out 2>&1
rc=$?
test $rc -ne 0
tap $? "a lesson, Ctrl-C: not the code of success ($rc)" out
says 'and a message' 'wine_ddp_spawn: td_spawn: stopped by '
! pgrep -f "^$apps/wine_ddp_spawn 100000" >/dev/null
tap $? 'no process is left'
done_testing
