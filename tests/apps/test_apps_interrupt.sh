#!/usr/bin/env bash
# Ctrl-C: on a terminal, from a script, twice; and going on afterwards to the same bits.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
! why=$(no_terminal) || skip_all 'Ctrl-C on a terminal' "${why#*: }"
cifar="$apps/cifar_resnet18 --limit 128 --batch-size 8 --epochs 2 --workers 2"
events=$PWD/tests/apps/read_events.py data=$PWD/data
cd "$work" || exit 1
few_images

# shellcheck disable=SC2086
works 'the uninterrupted run' $cifar --save whole --log-dir log
works 'its event file has what the CSV has' python3 "$events" log

# shellcheck disable=SC2086
$terminal 'step [0-9]+/16' 1 $cifar --seed 0 --profile >out 2>&1
rc=$?
test $rc -eq 130
tap $? "Ctrl-C on a terminal: code 130 (was $rc)" out
says 'there is a live line' 'epoch 1/2  step [0-9]+/16  [0-9]+ images/s  loss [0-9.]+  acc [0-9.]+%  ETA [0-9]+:'
says 'and where the time went' '^conv2d +layer1\.0\.conv1 \(Conv2d\) +fwd '
says 'it says that it stops' 'stopping after this step'
says 'it says how to go on' 'go on with --resume cifar_resnet18\.safetensors'
# shellcheck disable=SC2086
works 'it goes on' $cifar --resume cifar_resnet18.safetensors --save rest
same 'to the same bits' whole rest

# Steps so long that the live line is drawn after each.
$terminal 'step [0-9]+/4' 1 "$apps/cifar_resnet18" --limit 512 --batch-size 128 --threads 1 --save long >out 2>&1
says 'long steps, too' 'stopped after step [0-9] of epoch 1'
! tr '\r' '\n' <out | grep -q 'ETA .*stopped after'
tap $? 'and the live line makes way for the message' out

# From a script, at any moment, several times in one run.
cp cifar_resnet18.safetensors part
for delay in 0.4 0.9 1.7; do
    # shellcheck disable=SC2086
    $cifar --resume part --save part >out 2>&1 &
    child=$!
    sleep $delay
    kill -TERM $child 2>/dev/null
    wait $child
    rc=$?
done
tap $((rc != 143 && rc != 0)) "a script's SIGTERM: code 143 (or 0: too late)" out
# shellcheck disable=SC2086
works 'and once more to the end' $cifar --resume part --save part
same 'the same bits again' whole part

# shellcheck disable=SC2086
$terminal 'step [0-9]+/16' 2 $cifar --save twice >out 2>&1
rc=$?
test $rc -eq 130
tap $? "Ctrl-C twice: at once, code 130 (was $rc)" out

# What terminals and batch systems send: a checkpoint, and the code that says so.
ulimit -c 0
asked() { # asked SIGNAL TIMES COMMAND...: sent after a step; $rc
    local signal=$1 times=$2
    shift 2
    rm -f asked out
    "$@" --save asked --print-every 1 >out 2>&1 &
    child=$!
    await_line '== step' out
    for ((i = 0; i < times; i++)); do
        kill -"$signal" $child 2>/dev/null
        sleep 0.02
    done
    wait $child
    rc=$?
}
for signal in HUP USR1 USR2 XCPU; do
    # shellcheck disable=SC2086
    asked $signal 3 $cifar --epochs 1000
    [ $rc -eq $((128 + $(kill -l $signal))) ] && [ -f asked ] && grep -q 'go on with --resume asked' out
    tap $? "SIG$signal, sent three times: a checkpoint (code $rc)" out
    for start in "$apps/tdrun --nproc-per-node 2" ''; do
        # shellcheck disable=SC2086
        asked $signal 1 $start $cifar --epochs 1000 $([ -n "$start" ] || echo --spawn 2)
        [ $rc -eq $((128 + $(kill -l $signal))) ] && [ -f asked ] && grep -q 'go on with --resume asked' out
        tap $? "SIG$signal to ${start:-the parent of two processes}: a checkpoint (code $rc)" out
    done
done
# shellcheck disable=SC2086
asked HUP 3 nohup $cifar
[ $rc -eq 0 ] && grep -qF '[2/2]' out
tap $? "nohup: SIGHUP changes nothing (code $rc)" out
for start in "$apps/tdrun --nproc-per-node 2" ''; do
    rm -f closed
    # shellcheck disable=SC2086
    $terminal '== step|step [0-9]+/' 0 $start $cifar --epochs 1000 --save closed >out 2>&1
    rc=$?
    [ $rc -eq 129 ] && [ -f closed ]
    tap $? "the terminal is closed: a checkpoint, ${start:-a program alone} (code $rc)" out
done

# A lesson knows nothing of signals: Ctrl-C ends it.
ln -s "$data" data
$terminal 'Epoch 3,' 1 "$apps/wine_single" 100000 >out 2>&1
rc=$?
test $rc -eq 130
tap $? "a lesson, Ctrl-C: code 130 (was $rc)" out
done_testing
