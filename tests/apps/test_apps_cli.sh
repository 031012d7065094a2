#!/usr/bin/env bash
# Command lines of all apps: help, and what they say to wrong options.
. "$(dirname "$0")/../help/tap.sh"

for source in apps/*.c apps/tools/*.c; do
    name=$(basename "$source" .c)
    works "$name --help" "$apps/$name" --help
    says "$name --help tells the usage" '[Uu]sage:'
    works "$name -h" "$apps/$name" -h
    says "$name -h does, too" '[Uu]sage:'
    ! grep -qE '^ +$' "$work/out"
    tap $? "$name --help has no empty line between options" "$work/out"
done

# A full disk behind stdout is an error, whatever was printed.
full() { # full NAME COMMAND...
    local name=$1
    shift
    "$@" >/dev/full 2>"$work/err" </dev/null
    [ $? -eq 1 ] && grep -q 'cannot write' "$work/err"
    tap $? "$name: a full disk is noticed" "$work/err"
}
for source in apps/*.c apps/tools/*.c; do
    name=$(basename "$source" .c)
    full "$name --help" "$apps/$name" --help
done
full wine_single "$apps/wine_single" 1
full 'a rank of wine_ddp_spawn' "$apps/wine_ddp_spawn" --nprocs 1 1
full group_basics "$apps/group_basics"
full 'cifar_single, on shapes' "$apps/cifar_single" --limit 64 --epochs 1
full tdrun "$apps/tdrun" --standalone "$apps/wine_ddp_launch" 1

# The main job's options are those of all apps that train.
name=cifar_resnet18
app=$apps/$name
works "$name --help" "$app" --help
says "$name --help has the defaults" 'default [0-9]'
says "$name --help has --resume" '--resume=FILE'
sed -n '/What most runs need:/,/^ All else:/s/^ *--\([a-z-]*\).*/\1/p' "$work/out" | tr '\n' ' ' >"$work/first"
echo -n 'batch-size data device epochs lr precision resume save ' >"$work/expected"
same "$name --help begins with what most runs need" "$work/expected" "$work/first"
works "$name --version" "$app" --version
says "$name --version is tandem's" '^tandem [0-9]+\.'
fails "$name: unknown flag" 64 'nonsense' "$app" --nonsense
fails "$name: a misspelt flag" 64 "unrecognized option '--batchsize'; the nearest is --batch-size" "$app" --epochs 1 --batchsize=3
fails "$name: a value without an option" 64 "'stray'" "$app" stray
fails "$name: an option without its value" 64 'epochs' "$app" --epochs
fails "$name: negative" 64 '--epochs: -3 is out of range; it goes from 1 to' "$app" --epochs=-3
fails "$name: zero" 64 '--batch-size: 0 is out of range' "$app" --batch-size 0
fails "$name: absurd" 64 '--workers: 1000000 is out of range' "$app" --workers 1000000
fails "$name: beyond 64 bits" 64 'out of range' "$app" --epochs 99999999999999999999
fails "$name: garbage behind a number" 64 "'5x' is not a whole number" "$app" --epochs 5x
fails "$name: a fraction of an epoch" 64 "'1.5' is not a whole number" "$app" --epochs 1.5
fails "$name: no number" 64 "'fast' is not a number" "$app" --lr fast
fails "$name: lr nan" 64 "not a number" "$app" --lr nan
fails "$name: lr zero" 64 '--lr: 0 is out of range' "$app" --lr 0
fails "$name: lr with a blank" 64 "' 1' is not a number" "$app" --lr ' 1'
fails "$name: lr infinite" 64 "--lr: 'inf' is not a number" "$app" --lr inf
fails "$name: empty text" 64 '--save: the value is empty' "$app" --save ''
fails "$name: a device that is not one" 1 'toaster' "$app" --device toaster
fails "$name: a device number too large" 1 'cpu:99' "$app" --device cpu:99
fails "$name: a log folder that cannot be" 1 'not a folder' "$app" --log-dir /dev/null/logs

# The lessons have a few, and say which.
for name in cifar_single cifar_dp cifar_ddp_spawn cifar_ddp_launch cifar_ddp_slurm imagenet; do
    app=("$apps/$name" --data "$work/none")
    for wrong in --nonsense stray --epochs --epochs=0 --batch-size=0 --limit=-1; do
        fails "$name: $wrong" 64 "^usage: $name .*--epochs N" "${app[@]}" $wrong
    done
done
for command in 'wine_single --batch-size' 'wine_single' 'wine_ddp_launch 3' 'wine_ddp_spawn --nprocs' \
    'wine_ddp_multinode --nnodes' 'cifar_single --epochs' 'cifar_dp --devices' 'cifar_ddp_spawn --ngpus_per_node' \
    'cifar_ddp_launch --limit' 'cifar_ddp_slurm --batch-size' 'imagenet --epochs' 'ring_allreduce' 'ring_allreduce 2' \
    'shard_memory' 'same_bits' 'ddp_by_hand' 'checkpoints --stop'; do
    # shellcheck disable=SC2086
    fails "$command 5x" 64 ": [-A-Za-z_]*: '5x' is not a whole number" "$apps"/$command 5x
done
fails 'a misspelt option of a lesson' 64 "^cifar_single: unrecognized option '--epoch-count=2'; the nearest is --epochs$" \
    "$apps/cifar_single" --epoch-count=2
fails 'an option of a lesson that is like no other' 64 "^wine_single: unrecognized option '--learning-rate'$" "$apps/wine_single" --learning-rate 1
fails 'one of a tool' 64 "^cifar_resnet18: unrecognized option '--learning-rate'$" "$apps/cifar_resnet18" --learning-rate 1
fails 'one of a tool without options' 64 "^compare: unrecognized option '--all'$" "$apps/compare" --all
works 'plot_runs --version' "$apps/plot_runs" --version
says '  is tandem'"'"'s' '^tandem [0-9]+\.[0-9.]+$'
fails 'a negative number of epochs' 64 '^wine_single: [A-Z_]*: -5 is out of range' "$apps/wine_single" -5
fails 'it names the option' 64 "^cifar_single: --epochs: '5x'" "$apps/cifar_single" --epochs 5x
fails 'group_basics: a rank that is no number' 64 "^group_basics: RANK: '0x'" "$apps/group_basics" 0x 2 tcp://127.0.0.1:1
fails 'cifar_dp: more devices than there can be' 64 '--devices N' "$apps/cifar_dp" --devices 17
fails 'cifar_ddp_spawn: no process' 64 '--ngpus_per_node N' "$apps/cifar_ddp_spawn" --ngpus_per_node 0
fails 'cifar_ddp_spawn: a node that is not there' 64 '--node_rank N' \
    "$apps/cifar_ddp_spawn" --nodes 2 --dist-url tcp://127.0.0.1:1 --node_rank 2
fails 'cifar_single: a device that is not one' 1 'toaster' env TANDEM_DEVICE=toaster "$apps/cifar_single"
fails 'cifar_single: a named folder that is not there' 1 "no CIFAR-10 in '$work/none'" \
    "$apps/cifar_single" --data "$work/none"
fails 'plot_runs: no folder' 64 'plot_runs: give at least one folder: DIR\.\.\.$' "$apps/plot_runs"
fails 'predict: no picture' 64 'predict: give at least one model and one image: MODEL' "$apps/predict" m.safetensors
fails 'cifar_ddp_slurm: outside of Slurm' 1 'tdrun sets them; srun and mpirun' "$apps/cifar_ddp_slurm"
works 'cifar_resnet18 --help' "$apps/cifar_resnet18" --help
says 'a round number has no exponent' 'wait for each other \(default$|default 300\)'
env -u TANDEM_DATA https_proxy=http://127.0.0.1:9 "$apps/cifar_resnet18" --data "$work/none" --download --epochs 1 >"$work/out" 2>&1
test "$(grep -c 'cannot be downloaded' "$work/out")" -eq 1
tap $? '--download into a named folder fails: said once' "$work/out"
"$apps/cifar_resnet18" --limit 32 --batch-size 32 --epochs 1 --log-dir /proc/x >"$work/out" 2>&1
tail -n 1 "$work/out" | grep -q '^cifar_resnet18: .*/proc/x'
tap $? 'an error comes behind what was printed before' "$work/out"
fails 'wine_ddp_multinode: a node that is not there' 64 '--node-rank 0\.\.NNODES-1' \
    "$apps/wine_ddp_multinode" --nnodes 2 --node-rank 2
fails 'wine_ddp_spawn: no process' 64 '^usage: wine_ddp_spawn \[--nprocs N\]' "$apps/wine_ddp_spawn" --nprocs 0
fails 'group_basics: by hand, without a place' 64 '^usage: group_basics \[RANK WORLD_SIZE URL\]' \
    "$apps/group_basics" 0 2
fails 'group_basics: a rank that is not there' 1 'rank 2' "$apps/group_basics" 2 2 tcp://127.0.0.1:23456
ln -s "$PWD/data" "$work/data"
(cd "$work" && "$apps/wine_single" 1 >/dev/null)
full 'wine_single' env -C "$work" "$apps/wine_single" 1
fails 'a model alone is no checkpoint' 1 "model_0\.safetensors is no checkpoint of a training run" \
    "$apps/cifar_resnet18" --resume "$work/model_0.safetensors"
fails 'no such checkpoint' 1 'nofile: cannot be opened' "$apps/cifar_resnet18" --resume nofile
mkfifo "$work/fifo"
fails 'a checkpoint that is a FIFO' 1 "$work/fifo: a FIFO or device" \
    timeout 60 "$apps/cifar_resnet18" --resume "$work/fifo"
fails 'a trace that is a FIFO' 1 "fifo' cannot be written" \
    timeout 60 "$apps/cifar_resnet18" --limit 32 --batch-size 32 --epochs 1 --trace "$work/fifo"
fails 'a joined trace that is a FIFO' 1 "fifo' cannot be written" timeout 60 "$apps/cifar_resnet18" \
    --spawn 2 --limit 64 --batch-size 32 --epochs 1 --trace "$work/fifo"
fails 'a configuration that is a FIFO' 1 'fifo: a FIFO or device, not a regular file' timeout 60 \
    "$apps/train_net" --cfg "$work/fifo"
fails 'cifar_resnet18: an unknown stem' 64 "'oak' is not one of imagenet\|cifar" \
    "$apps/cifar_resnet18" --stem oak
fails 'cifar_resnet18: a limit below zero' 64 '--limit: -1 is out of range' \
    "$apps/cifar_resnet18" --limit=-1
done_testing
