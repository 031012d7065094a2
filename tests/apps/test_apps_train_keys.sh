#!/usr/bin/env bash
# Every key of train_net's settings has an effect: on the weights that come out, or on what is said
# and written where it must not change them. Beside it stands the control: equal runs, and runs with
# keys that must not matter, give equal weights. The model is the smallest that there is: what takes
# time here is writing and reading checkpoints.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
export OMP_NUM_THREADS=1
cd "$work" || exit 1
make_folders data
mkdir -p fewer
cp -r data/train data/val fewer/
rm fewer/*/grey/grey.jpg fewer/train/grey/grey_stored.png
cat >base.yaml <<'Y'
MODEL: {ARCH: efficientnet_b0, NUM_CLASSES: 5}
TRAIN: {DATASET: data, IM_SIZE: 32, BATCH_SIZE: 4, WORKERS: 0, PRINT_FREQ: 1}
TEST: {DATASET: data, IM_SIZE: 36, CROP_SIZE: 32, BATCH_SIZE: 4, PRINT_FREQ: 1}
OPTIM: {MAX_EPOCH: 1, BASE_LR: 0.02, WARMUP_EPOCHS: 1}
RNG_SEED: 1
Y
"$apps/train_net" --cfg base.yaml --keys | sed -n 's/^\( *\)\([A-Z_]*\):.*/\1\2/p' |
    awk '/^[A-Z]/ { node = $1; alone[NR] = node; next } { print node "." $1; delete alone[NR - 1] }
         END { for (i in alone) print alone[i] }' >keys
tested=

run() { # run NAME KEY VALUE...: its output goes to NAME.log; OUT_DIR is NAME
    local name=$1
    shift
    "$apps/train_net" --cfg base.yaml OUT_DIR "$name" "$@" >"$name.log" 2>&1
}
last() { # last NAME: weights after the run
    # shellcheck disable=SC2012
    weights_of "$1/checkpoints/$(ls "$1/checkpoints" | tail -n 1)"
}
count=0
changes() { # changes KEY VALUE... [-- KEY VALUE...]: with the first pair others come out than with the rest alone
    local key=$1 value=$2 with without
    shift 2
    tested="$tested $key"
    count=$((count + 1))
    run "c$count" "$@" "$key" "$value"
    with=$(last "c$count") && [ -n "$with" ] || { tap 1 "$key $value" "c$count.log"; return; }
    without=$base
    if [ $# -gt 0 ]; then
        run "d$count" "$@"
        without=$(last "d$count")
    fi
    test -n "$without" -a "$with" != "$without"
    tap $? "$key $value changes the weights${1:+ (with $*)}" "c$count.log"
    rm -rf "c$count" "d$count"
}
keeps() { # keeps KEY VALUE PATTERN: the same weights, and the output has a line that it had not
    tested="$tested $1"
    count=$((count + 1))
    run "c$count" "$1" "$2"
    test "$(last "c$count")" = "$base"
    tap $? "$1 $2 keeps the weights" "c$count.log"
    ! grep -qE -- "$3" base.log && grep -qE -- "$3" "c$count.log"
    tap $? "and shows: $3" "c$count.log"
    rm -rf "c$count"
}

run base
base=$(last base)
test -n "$base"
tap $? 'the base' base.log
run again
test "$(last again)" = "$base"
tap $? 'control: an equal run has equal weights'

# ---- what is trained ----
changes RNG_SEED 2
changes PRECISION bf16
changes WINOGRAD True MODEL.ARCH resnet18 TRAIN.IM_SIZE 128 # EfficientNet has no such convolutions
changes MODEL.ARCH resnet18
changes MODEL.NUM_CLASSES 6
changes MODEL.DUMMY_INPUT True MODEL.DUMMY_SAMPLES 12
changes MODEL.DUMMY_SAMPLES 20 MODEL.DUMMY_INPUT True MODEL.DUMMY_SAMPLES 12
changes MODEL.WEIGHTS again/best
mkdir models
ln -s ../again/best models/efficientnet_b0.safetensors
export TANDEM_MODELS=$work/models
changes MODEL.PRETRAINED True
changes TRAIN.BATCH_SIZE 6
changes TRAIN.ACCUM_STEPS 3
changes TRAIN.IM_SIZE 40
changes TRAIN.DATASET fewer
changes TRAIN.SPLIT val TRAIN.DATASET fewer
changes TRAIN.MIN_AREA 0.9
changes TRAIN.COLOR_JITTER 0.4
changes TRAIN.FLIP False
changes OPTIM.MAX_EPOCH 2
changes OPTIM.BASE_LR 0.03
changes OPTIM.MIN_LR 0.5 OPTIM.MAX_EPOCH 2
changes OPTIM.LR_POLICY steps OPTIM.MAX_EPOCH 2
changes OPTIM.STEPS '[1]' OPTIM.LR_POLICY steps OPTIM.MAX_EPOCH 2
changes OPTIM.LR_MULT 0.5 OPTIM.LR_POLICY steps OPTIM.STEPS '[1]' OPTIM.MAX_EPOCH 2
changes OPTIM.MOMENTUM 0.8
changes OPTIM.NESTEROV False
changes OPTIM.DAMPENING 0.2 OPTIM.NESTEROV False
changes OPTIM.WARMUP_FACTOR 0.3
changes OPTIM.WARMUP_EPOCHS 2 OPTIM.MAX_EPOCH 2
changes OPTIM.AFTER_WARMUP True OPTIM.MAX_EPOCH 2
changes OPTIM.WEIGHT_DECAY 0.01
changes OPTIM.LABEL_SMOOTHING 0.1
changes OPTIM.CLIP_GRAD_NORM 0.5

# ---- what is not ----
keeps TRAIN.WORKERS 2 ', 2 loader threads$'
keeps TRAIN.GRAPH True '^TRAIN.GRAPH: a CPU has no graphs'
keeps TRAIN.AUTOTUNE True '^autotune: nothing to choose: on a CPU each convolution has one algorithm'
keeps TRAIN.PIN_MEMORY False 'only on GPUs'
keeps CUDNN.BENCHMARK False 'only on GPUs'
keeps CUDNN.DETERMINISTIC True 'only on GPUs'
keeps TRAIN.TOPK 2 'Acc@2 '
keeps TEST.DATASET fewer 'tested on 11 images'
keeps TEST.BATCH_SIZE 2 '^Test: \[  1/6\]'
keeps DEVICE cpu:1 ', fp32; cpu:1, '
loss_of() { sed -n 's/.*tested on .*: Loss \([0-9.]*\) .*/\1/p' "$1" | tail -n 1; }
for pair in 'TEST.IM_SIZE 64' 'TEST.CROP_SIZE 24'; do
    tested="$tested ${pair% *}"
    # shellcheck disable=SC2086
    run sized $pair
    test "$(last sized)" = "$base" -a "$(loss_of sized.log)" != "$(loss_of base.log)" -a -n "$(loss_of sized.log)"
    tap $? "$pair changes the test's loss and not the weights" sized.log
    rm -rf sized
done
tested="$tested TRAIN.HASH_EVERY TRAIN.PRINT_FREQ TEST.PRINT_FREQ TEST.SPLIT CFG_DEST OUT_DIR MODEL.RECOMPUTE"
run freq TRAIN.PRINT_FREQ 2 TEST.PRINT_FREQ 3 CFG_DEST all.yaml TRAIN.HASH_EVERY 2
test "$(last freq)" = "$base" -a "$(grep -c '  lr ' freq.log)" -eq 2 -a "$(grep -c '  lr ' base.log)" -eq 3
tap $? 'TRAIN.PRINT_FREQ 2: every second line, and the last' freq.log
test "$(cut -f 1 freq/hashes.tsv | sort -u)" = 2 -a ! -e base/hashes.tsv
tap $? 'TRAIN.HASH_EVERY 2: the second step of three'
test "$(grep -c '^Test: ' freq.log)" -eq 1 -a "$(grep -c '^Test: ' base.log)" -eq 3
tap $? 'TEST.PRINT_FREQ 3: every third' freq.log
test -s freq/all.yaml -a ! -e freq/config.yaml -a -s base/config.yaml
tap $? 'CFG_DEST names the settings in OUT_DIR'
mkdir -p data/trial
cp -r data/val/* data/trial/
cp data/trial/rgb/rgb.png data/trial/rgb/more.png
run split TEST.SPLIT trial
test "$(last split)" = "$base" && grep -q 'tested on 13 images' split.log
tap $? 'TEST.SPLIT' split.log
memory_of() { sed -n 's/^memory: .* step \([0-9.]*\),.*/\1/p' "$1"; }
run plain TRAIN.IM_SIZE 96 --memory
run recomputed TRAIN.IM_SIZE 96 MODEL.RECOMPUTE block --memory
test "$(last plain)" = "$(last recomputed)"
tap $? 'MODEL.RECOMPUTE block keeps the weights' recomputed.log
awk -v a="$(memory_of plain.log)" -v b="$(memory_of recomputed.log)" 'BEGIN { exit !(b > 0 && b < 0.9 * a) }'
tap $? "and takes less memory ($(memory_of recomputed.log) for $(memory_of plain.log) MiB)" recomputed.log

tested="$tested OPTIM.EMA_DECAY TRAIN.AUTO_RESUME TRAIN.LOAD_OPT DATA.SKIP_BAD MODEL.SYNCBN"
run ema OPTIM.EMA_DECAY 0.9
test "$(last ema)" = "$base" -a "$(weights_of ema/best)" != "$(weights_of base/best)"
tap $? 'OPTIM.EMA_DECAY keeps the weights; what is tested and the best is an average' ema.log
for file in best checkpoints/ckpt_ep_001; do
    "$apps/test_net" --cfg base.yaml MODEL.WEIGHTS ema/$file 2>&1 | tee -a ema.log | grep ' on 12 images' \
        >"ema.${file##*/}"
done
grep -q '^averages of the weights from ema/checkpoints' ema.log && cmp -s ema.best ema.ckpt_ep_001
tap $? 'test_net on a checkpoint with averages tests those' ema.log
for file in ema/best ema/checkpoints/ckpt_ep_001; do
    "$apps/predict" $file "$pictures/rgb.png" >"${file//\//.}.said" 2>&1
done
grep -q '%  rgb$' ema.best.said && cmp -s ema.best.said ema.checkpoints.ckpt_ep_001.said
tap $? 'and predict uses them' ema.checkpoints.ckpt_ep_001.said
two="OPTIM.MAX_EPOCH 2"
# shellcheck disable=SC2086
{
    run half $two
    two_epochs=$(last half)
    rm half/checkpoints/ckpt_ep_002
    cp -r half anew
    cp -r half fresh
    run half $two
    run anew $two TRAIN.AUTO_RESUME False
    run fresh $two TRAIN.LOAD_OPT False
    run newest $two TRAIN.KEEP_CHECKPOINTS 1 TRAIN.SAVE_ASYNC True
}
grep -q '^resumed from half/checkpoints/ckpt_ep_001' half.log
tap $? 'TRAIN.AUTO_RESUME goes on' half.log
test "$(last half)" = "$two_epochs"
tap $? 'to the same weights'
! grep -q '^resumed' anew.log && test "$(grep -c '  lr ' anew.log)" -eq 6 -a "$(grep -c '  lr ' half.log)" -eq 3
tap $? 'TRAIN.AUTO_RESUME False begins again' anew.log
grep -q '^resumed' fresh.log && test "$(last fresh)" != "$two_epochs"
tap $? 'TRAIN.LOAD_OPT False goes on without the momentum' fresh.log
tested="$tested TRAIN.KEEP_CHECKPOINTS TRAIN.SAVE_ASYNC"
test "$(ls newest/checkpoints)" = ckpt_ep_002 -a "$(ls half/checkpoints | wc -l)" -eq 2
tap $? 'TRAIN.KEEP_CHECKPOINTS 1 keeps the newest'
test "$(grep -c '^saved: newest/checkpoints/ckpt_ep_00' newest.log)" -eq 2 -a "$(last newest)" = "$two_epochs"
tap $? 'TRAIN.SAVE_ASYNC tells of each, and changes no weight' newest.log
rm -rf half anew fresh newest

cp -r data bad
head -c 20 data/train/rgb/rgb_stored.png >bad/train/rgb/rgb_stored.png
run refused TRAIN.DATASET bad
rc=$?
test $rc -ne 0 && grep -q 'bad/train/rgb/rgb_stored.png' refused.log
tap $? 'a bad picture is an error that names it' refused.log
run skipped TRAIN.DATASET bad DATA.SKIP_BAD True
rc=$?
test $rc -eq 0 && grep -q 'bad/train/rgb/rgb_stored.png' skipped.log
tap $? 'DATA.SKIP_BAD: the run ends well, and lists it' skipped.log
# (Two images a rank are too few for their own statistics: the test's loss of syncFalse is no number.)
for sync in True False; do
    "$apps/tdrun" --nproc-per-node 2 "$apps/train_net" --cfg base.yaml TRAIN.BATCH_SIZE 2 OPTIM.MAX_EPOCH 1 \
        OUT_DIR "sync$sync" MODEL.SYNCBN $sync >"sync$sync.log" 2>&1
done
test -s syncTrue/best && test "$(last syncTrue)" != "$(last syncFalse)"
tap $? 'MODEL.SYNCBN changes what two ranks learn' syncTrue.log

# How processes share the work is no key: it changes nothing in what they learn.
"$apps/tdrun" --nproc-per-node 2 "$apps/train_net" --mesh rep=2 --cfg base.yaml TRAIN.BATCH_SIZE 2 OPTIM.MAX_EPOCH 1 \
    OUT_DIR mesh MODEL.SYNCBN True >mesh.log 2>&1
test "$(last mesh)" = "$(last syncTrue)" && test -n "$(last mesh)"
tap $? '--mesh rep=2 keeps what two ranks learn' mesh.log
fails 'a mesh that does not fit' 1 "the mesh 'dp=3' is for 3 ranks, not for 2" "$apps/tdrun" --nproc-per-node 2 \
    "$apps/train_net" --mesh dp=3 --cfg base.yaml OUT_DIR mesh3
for more in '--shard optimizer' '--shard parameters --offload .' '--shard parameters --wire bf16'; do
    # shellcheck disable=SC2086
    works "$more" "$apps/tdrun" --nproc-per-node 2 "$apps/train_net" $more --cfg base.yaml TRAIN.BATCH_SIZE 2 \
        OPTIM.MAX_EPOCH 1 MODEL.SYNCBN True OUT_DIR shard
    says "$more: it says so" "^the optimizer's state.* cut into 2 windows"
    test -n "$(last shard)" && { [[ $more = *wire* ]] || test "$(last shard)" = "$(last syncTrue)"; }
    tap $? "$more: keeps what two ranks learn"
    mv shard "shard.${more// /.}"
done

# One folder of classes: train_net and test_net split it alike, whatever TEST.DATASET says.
tested="$tested DATA.VAL_FRACTION"
cp -r data/train photos
one="TRAIN.DATASET photos TEST.DATASET nowhere DATA.VAL_FRACTION 0.5"
# shellcheck disable=SC2086
run one $one
grep -q '5 images in 5 classes' one.log && grep -q 'tested on 7 images' one.log
tap $? 'DATA.VAL_FRACTION splits the folder TRAIN.DATASET' one.log
# shellcheck disable=SC2086
"$apps/test_net" --cfg base.yaml $one MODEL.WEIGHTS one/best >tested.log 2>&1
grep -q ' on 7 images' tested.log && test "$(grep '^Test: ' tested.log)" = "$(grep '^Test: ' one.log)"
tap $? 'and test_net tests the same images' tested.log
run nowhere TRAIN.DATASET photos
grep -q 'TRAIN.DATASET and TRAIN.SPLIT: there is no folder .photos/train..*DATA.VAL_FRACTION 0.2' nowhere.log
tap $? 'a folder without training and test data: how to split it' nowhere.log

while read -r key; do
    case " $tested " in
    *" $key "*) ;;
    *) echo "$key" ;;
    esac
done <keys >untested
test ! -s untested -a "$(wc -l <keys)" -gt 50
tap $? "all $(wc -l <keys) keys have their test" untested
done_testing
