#!/usr/bin/env bash
# The lessons with a GPT: the same bits with any number of threads and when resumed; several processes, with and
# without sharding, train as one does.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID TANDEM_TEXT
cat nn/*.c >"$work/text.txt"
ln -s "$PWD/nn" "$work/nn"
tools=$PWD/tests/help
cd "$work" || exit 1 # checkpoints go here
model='gpt-nano layers=2 heads=2 width=32 context=32'
few=(--data text.txt --model "$model" --evaluate-every 6)
weights() { python3 -I -S "$tools/weights.py" hash "$1"; }
losses() { grep -a '^step' "$1" | sed 's/ bytes right//'; }

# ---- on one device ----

works 'it runs' "$apps/gpt_single" "${few[@]}" --steps 12 --length 40
says 'the model' '^gpt-nano layers=2 heads=2 width=32 context=32: [0-9]+ parameters'
says 'losses' '^step    12: loss [0-9.]+ \| validation: loss [0-9.]+, [0-9.]+ % of bytes right$'
says 'it writes' '^---- 40 bytes ----$'
losses out >whole
mv gpt_single.safetensors whole.safetensors
for threads in 1 3; do
    OMP_NUM_THREADS=$threads works "$threads threads" "$apps/gpt_single" "${few[@]}" --steps 12
    same "$threads threads: the same bits" whole.safetensors gpt_single.safetensors
done
works 'half of it' "$apps/gpt_single" "${few[@]}" --steps 6
mv gpt_single.safetensors half.safetensors
works 'the other half' "$apps/gpt_single" "${few[@]}" --resume half.safetensors --steps 12
same 'the same bits' whole.safetensors gpt_single.safetensors
works 'as a Llama' "$apps/gpt_single" "${few[@]:0:2}" --model "$model rope rms_norm swiglu no_bias" --steps 4
works 'without a text' "$apps/gpt_single" --model "$model" --steps 2
says 'it says so' '^\*\*\* This is NOT Shakespeare'

# ---- on several ----

export OMP_NUM_THREADS=1
for ranks in 2 4; do
    for shard in 0 1 2 3; do
        works "$ranks processes, --shard $shard" "$apps/gpt_ddp" "${few[@]}" --steps 12 --nprocs $ranks --shard $shard
        losses out >many
        same 'the losses of one process' whole many
        weights gpt_ddp.safetensors >sharded
        [ $shard = 0 ] && mv sharded plain
        [ $shard = 0 ] || same 'the bits of plain DDP' plain sharded
    done
done

for ranks in 1 2 4; do
    works "tensor slices on $ranks" "$apps/gpt_tensor" --data text.txt --model 'gpt-nano layers=2 width=32 heads=4 context=16' \
        --steps 4 --nprocs $ranks --slices 4
    [ $ranks = 1 ] && mv gpt_tensor.safetensors one.safetensors
    [ $ranks = 1 ] || same 'the file of one process' one.safetensors gpt_tensor.safetensors
done

# ---- refusals ----

fails 'no such file' 1 'nothing\.txt' "$apps/gpt_single" --data nothing.txt
fails 'no such model' 1 "the nearest name is 'gpt-nano'" "$apps/gpt_single" --data text.txt --model gpt-nana
fails 'no such option of a model' 1 "nearest name is 'layers'" "$apps/gpt_single" --data text.txt --model 'gpt-nano layer=3'
fails 'steps' 64 'no multiple of --evaluate-every' "$apps/gpt_single" --steps 20 --evaluate-every 6
fails 'a batch that cannot be divided' 64 'cannot be divided' "$apps/gpt_ddp" --nprocs 5
fails 'images for it' 1 'takes tokens, not images' "$apps/predict" whole.safetensors text.txt
printf 'too short' >short.txt
fails 'a text that fills no window' 1 'short\.txt' "$apps/gpt_single" --data short.txt
done_testing
