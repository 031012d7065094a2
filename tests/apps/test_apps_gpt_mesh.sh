#!/usr/bin/env bash
# apps/gpt --mesh: slices and stages have the bits of one process, in the weights, in checkpoints and in validations, and
# so have averages and samples, and a run that goes on under another mesh; with leaves replicas have them, too, and a tied
# GPT; what such a run refuses.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID TANDEM_TEXT TANDEM_MESH
cat nn/*.c >"$work/text.txt"
cd "$work" || exit 1 # checkpoints go here
gpt=$apps/gpt
run=(timeout 100 "$gpt" --data text.txt --preset 'gpt-nano layers=3 heads=4 width=16 context=16 untied'
    --epochs 2 --epoch-steps 5 --batch-size 4 --slices 4 --micro 2 --ema 0.9 --sample-every 5 --length 24)
samples() { sed -n '/^---- a sample/,/^----$/p' out; } # what the averages write, and the bytes may be any
works 'one process' "${run[@]}" --save one.st --save-model one_model.st
grep -a '^validation\|^fingerprint' out >one
samples >one_sample
[ "$(grep -ac '^---- a sample' one_sample)" -eq 2 ] && grep -aq '"ema.transformer.h.2.mlp' one.st
tap $? 'it writes samples, and averages its weights' out
for mesh in 2:tp=2 4:pp=2,tp=2 3:pp=3; do
    works "$mesh" "${run[@]}" --spawn "${mesh%:*}" --mesh "${mesh#*:}" --save many.st --save-model many_model.st
    grep -a '^validation\|^fingerprint' out >many
    same 'its validations and its fingerprint' one many
    samples >many_sample
    same 'its samples' one_sample many_sample
    same 'its checkpoint' one.st many.st
    same 'its model' one_model.st many_model.st
done

works 'two processes that read different data' "${run[@]}" --spawn 2 --shard optimizer --accumulate 2 --save two.st
samples >two_sample
grep -a '^fingerprint' out >two
works 'and four that share the weights' "${run[@]}" --spawn 4 --mesh pp=2,dp=2 --shard parameters --accumulate 2
samples >many_sample
same 'their samples' two_sample many_sample
grep -a '^fingerprint' out >many
same 'their fingerprint' two many
works 'eight, of which four hold one model' "${run[@]}" --spawn 8 --mesh pp=2,dp=2,tp=2 --shard optimizer --accumulate 2 \
    --schedule zb --save-every 0 --save-every-steps 14 --save part.st --save-best best.st
says 'what is cut' '^the model is cut into 2 stages of 2 slices$'
says 'what is shared' "^the optimizer's state is cut into 2 windows"
says 'what is measured' '^step [0-9]+: communication [0-9.]+ ms$'
says 'whole numbers' ': a GPT of [0-9]+ parameters: 3 layers, 4 heads, width 16'
works 'two go on' "${run[@]}" --spawn 2 --mesh tp=1,dp=2 --resume part.st --save rest.st
says 'from there' '^resumed from part\.st after step 4 of epoch 2$'
same 'to the bits of two' two.st rest.st

leaves=(timeout 100 "$gpt" --data text.txt --preset 'gpt-nano layers=3 heads=4 width=16 context=16 dropout=0.1'
    --epochs 2 --epoch-steps 3 --batch-size 2 --slices 4 --leaves 4 --ema 0.9 --sample-every 3 --length 24)
nodes=()
lines() { grep -a '^epoch\|^validation\|^fingerprint' out | sed 's/  [0-9.]* s .*//'; }
works 'leaves' "${leaves[@]}"
lines >one
samples >one_sample
for mesh in 6:pp=2,dp=3 8:pp=2,dp=2,tp=2; do
    works "leaves on $mesh" "${leaves[@]}" --spawn "${mesh%:*}" --mesh "${mesh#*:}" --shard optimizer --save-every 0 \
        --save-every-steps 4 --save part.st
    lines >many
    samples >many_sample
    same 'its samples' one_sample many_sample
    same 'its losses and its fingerprint' one many
done
works 'three go on' "${leaves[@]}" --spawn 3 --mesh pp=3 --schedule gpipe --resume part.st --save rest.st
lines | tail -n 1 >many
tail -n 1 one >last
same 'to the same fingerprint' last many

# Adapters of a trained model, whose weights stay: those of one process, also saved alone.
lora=(timeout 100 "$gpt" --data text.txt --epochs 2 --epoch-steps 3 --batch-size 4 --slices 4 --ema 0.9 --lora 2
    --lora-layers '*' --sample-every 3 --length 24)
works 'adapters' "${lora[@]}" --init one_model.st --micro 2 --save-model one_adapters.st
grep -a '^adapters\|^validation\|^fingerprint' out >one
samples >one_sample
for mesh in 2:tp=2 4:pp=2,tp=2; do
    works "adapters on $mesh" "${lora[@]}" --init one_model.st --micro 2 --spawn "${mesh%:*}" --mesh "${mesh#*:}" \
        --save-model many_adapters.st --schedule zb
    grep -a '^adapters\|^validation\|^fingerprint' out >many
    samples >many_sample
    same 'their validations and their fingerprint' one many
    same 'their samples' one_sample many_sample
    same 'their file' one_adapters.st many_adapters.st
done
works 'a tied model' "${leaves[@]}" --save-model tied.st
works 'its adapters' "${lora[@]}" --init tied.st --leaves 4
lines | tail -n 1 >one
works 'its adapters on eight' "${lora[@]}" --init tied.st --leaves 4 --spawn 8 --mesh pp=2,dp=2,tp=2 --shard optimizer \
    --schedule zb --save-every 0 --save-every-steps 4 --save part.st
lines | tail -n 1 >many
same 'their fingerprint' one many
works 'and they go on' "${lora[@]}" --leaves 4 --spawn 2 --mesh pp=2 --resume part.st --save rest.st
lines | tail -n 1 >many
same 'to the same fingerprint' one many

# Of two nodes one goes away. The other's four processes start again with one replica (dp=*), and go on.
three_d() { # three_d TDRUN-OPTION... -- OPTION...
    local options=()
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    TANDEM_LIB_PATH=$(dirname "$apps") exec "$apps/tdrun" "${options[@]}" "$apps/gpt_3d" --data text.txt \
        --model 'gpt-nano layers=3 heads=4 width=16 context=16' --steps 400 --print-every 8 "${@:2}"
}
(three_d --nproc-per-node 1 -- --mesh pp=1) >whole 2>&1
rm gpt_3d.safetensors
port=$(free_port)
for node in first second; do
    three_d --nnodes 1:2 --rdzv-endpoint "127.0.0.1:$port" --max-restarts 5 --nproc-per-node 4 -- --resume 1 >$node 2>&1 &
    nodes[${#nodes[@]}]=$!
    await_line ":$(printf %04X "$port") 0*:0000 0A " /proc/net/tcp /proc/net/tcp6 # the first one has the port
done
await_line '^step    24' first second
kill -TERM "${nodes[1]}"
wait "${nodes[0]}"
tap $? 'the node that is left ends the run' first
grep -qa 'replicas: 2' first second && grep -qa 'replicas: 1' first
tap $? 'with fewer replicas' first
tail -n 1 whole >one
grep -a '^step' first | tail -n 1 >many
same 'to the fingerprint of one process' one many

fails 'a batch and micro-batches' 1 'a batch of 4 cannot be cut into 3 equal micro-batches' "${run[@]}" --spawn 2 --mesh pp=2 --micro 3
fails 'too many slices' 1 '8 slices on 2 processes: the processes must divide the slices, and the slices 4 heads' \
    "${run[@]}" --spawn 2 --mesh tp=2 --slices 8
fails 'a graph' 1 '--graph does not work with a model in slices: between its operations .*; leave it out' "${run[@]}" --spawn 2 --mesh tp=2 --micro 0 --graph
fails 'leaves, and micro-batches' 1 'leaves are the micro-batches of a pipeline' "${run[@]}" --leaves 2 --spawn 2
fails 'a schedule that there is not' 1 "there is no schedule '2f'" "${run[@]}" --schedule 2f
fails 'no process' 1 '--micro and --slices are for processes' "$gpt" --data text.txt --resume one.st
done_testing
