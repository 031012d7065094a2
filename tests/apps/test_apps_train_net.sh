#!/usr/bin/env bash
# train_net and test_net: a run from pictures to a tested model, Ctrl-C and kill -9 and going on to the
# same bits, two ranks, what is refused.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
cd "$work" || exit 1
make_folders data
mkdir config
cat >config/small.yaml <<'Y'
MODEL: {ARCH: efficientnet_b0, NUM_CLASSES: 5}
TRAIN: {DATASET: data, IM_SIZE: 32, BATCH_SIZE: 4, WORKERS: 1, PRINT_FREQ: 1}
TEST: {DATASET: data, IM_SIZE: 36, CROP_SIZE: 32, BATCH_SIZE: 5, PRINT_FREQ: 1}
OPTIM: {MAX_EPOCH: 3, BASE_LR: 0.02, WARMUP_EPOCHS: 1}
RNG_SEED: 1
Y
net=("$apps/train_net" --cfg config/small.yaml)

# ---- a run ----
works 'a run' "${net[@]}" OUT_DIR whole
says 'the model and the data' '^tandem .*: efficientnet_b0, 5 classes, 4013953 parameters$'
says 'the images' '^data: 12 images in 5 classes; batch 4, lr 0\.02, seed 1, fp32;'
says 'a step' '^Epoch \[1/3\] \[   1/3\]  lr 0\.002000  ETA [0-9:]+  Time [0-9.]+ \([0-9.]+\)  Data [0-9.]+ \([0-9.]+\)  Loss [0-9.]+ \([0-9.]+\)  Acc@1 [0-9.]+  Acc@5 100\.000$'
says 'the learning rate of the second epoch' '^Epoch \[2/3\] \[   3/3\]  lr 0\.015000 '
says 'a batch of the test' '^Test: \[  3/3\]  Loss .*Acc@5 100\.000$'
says 'each image is tested once' '^Epoch \[3/3\] tested on 12 images: Loss [0-9.]+  Acc@1 [0-9.]+  Acc@5 100\.000  best [0-9.]+$'
ls whole whole/checkpoints >listed
printf 'whole:\nbest\ncheckpoints\nconfig.yaml\n' >expected
grep -vE '^(events|metrics)' listed | head -n 4 >seen
same 'what lies in OUT_DIR' expected seen
test "$(ls whole/checkpoints | tr '\n' ' ')" = 'ckpt_ep_001 ckpt_ep_002 ckpt_ep_003 '
tap $? 'a checkpoint for each epoch' listed
head -n 1 whole/metrics.csv >head
echo 'step,train/loss,train/epoch_loss,train/epoch_accuracy,lr,images_per_second,test/loss,test/accuracy,epoch,train/epoch_accuracy_k,test/accuracy_k,data_wait_seconds' >expected
same 'metrics.csv' expected head
test "$(wc -l <whole/metrics.csv)" -eq 13
tap $? '9 steps and 3 tests in it' whole/metrics.csv
works 'the settings that it wrote are those it had' "$apps/train_net" --cfg whole/config.yaml --keys
cp out by_written
works 'and again' "${net[@]}" OUT_DIR whole --keys
same 'the same' by_written out
works 'a finished run has nothing to do' "${net[@]}" OUT_DIR whole
says 'it says where it stands' '^resumed from whole/checkpoints/ckpt_ep_003 after step 0 of epoch 4$'
says 'and that' '^all 3 epochs are done$'

# ---- testing, predicting ----
works 'test_net takes the best' "$apps/test_net" --cfg whole/config.yaml
says 'it has tested all' '^efficientnet_b0 on 12 images in 5 classes: Loss .*\(12 images\)$'
works 'or any file' "$apps/test_net" --cfg whole/config.yaml MODEL.WEIGHTS whole/checkpoints/ckpt_ep_002
works 'by two ranks' "$apps/tdrun" --nproc-per-node 2 "$apps/test_net" --cfg whole/config.yaml
grep -o '^efficientnet_b0.*classes\|Acc.*images)' out | tail -n 2 >two
"$apps/test_net" --cfg whole/config.yaml | grep -o '^efficientnet_b0.*classes\|Acc.*images)' >one
same 'the same figures' one two
: >out
"$apps/test_net" --cfg whole/config.yaml --profile MODEL.DUMMY_INPUT True MODEL.DUMMY_SAMPLES 100000 >out 2>&1 &
run=$!
until_line out '^Test: ' $run
kill -INT $run
wait $run
test $? -eq 130
tap $? 'Ctrl-C ends it after the running batch' out
says 'with what --profile was asked for' '^loader wait '
works 'predict knows its classes and size' "$apps/predict" whole/best "$pictures/rgb.png"
says 'by their names' '%  (grey|large|palette|rgb|sampled)$'

# ---- stopping and going on ----
# Signals are caught before the first line: asked there, a run stops after its first step.
: >out
"${net[@]}" OUT_DIR stopped >out 2>&1 &
run=$!
until_line out '^tandem ' $run
kill -INT $run
wait $run
test $? -eq 130
tap $? 'Ctrl-C ends it with its code' out
says 'it says how to go on' 'stopped after step [0-3] of epoch [123]; the same command goes on from there'
works 'the same command' "${net[@]}" OUT_DIR stopped
says 'goes on' '^resumed from stopped/checkpoints/ckpt_ep_00[012]'
same 'to the same bits' whole/checkpoints/ckpt_ep_003 stopped/checkpoints/ckpt_ep_003
! compgen -G 'stopped/checkpoints/*step*' >/dev/null
tap $? 'and removes what Ctrl-C had left'
: >out
"${net[@]}" OUT_DIR killed >out 2>&1 &
run=$!
until_line out '^saved: killed/checkpoints/ckpt_ep_001' $run
kill -KILL $run
wait $run 2>/dev/null
touch killed/checkpoints/ckpt_ep_000_step_000002.tmp.12345678.1 # as if it had been saving
works 'after kill -9' "${net[@]}" OUT_DIR killed
same 'the same bits' whole/checkpoints/ckpt_ep_003 killed/checkpoints/ckpt_ep_003
! compgen -G 'killed/checkpoints/*tmp*' >/dev/null
tap $? 'nothing of a killed save is left'

# A checkpoint that was cut short on the way to the disk, as on a full file server, and an empty one.
mkdir -p cut/checkpoints
cp whole/checkpoints/ckpt_ep_001 cut/checkpoints/
head -c 1000000 whole/checkpoints/ckpt_ep_002 >cut/checkpoints/ckpt_ep_002
: >cut/checkpoints/ckpt_ep_002_step_000001
cp -r cut hopeless
cp -r cut cut2
works 'after two damaged checkpoints' "${net[@]}" OUT_DIR cut
says 'the empty one is named' "cut/checkpoints/ckpt_ep_002_step_000001' cannot be used: .*; remove it\. This run goes on from the checkpoint before it$"
says 'the other, too' "cut/checkpoints/ckpt_ep_002' cannot be used: .*cut short; remove it"
says 'it goes on from the one before' '^resumed from cut/checkpoints/ckpt_ep_001 after'
same 'to the same bits' whole/checkpoints/ckpt_ep_003 cut/checkpoints/ckpt_ep_003
works 'by two ranks' "$apps/tdrun" --nproc-per-node 2 "${net[@]}" TRAIN.BATCH_SIZE 4 OUT_DIR cut2
says 'they agree' '^resumed from cut2/checkpoints/ckpt_ep_001 after'
: >hopeless/checkpoints/ckpt_ep_001
fails 'all are damaged' 1 'all checkpoints in hopeless/checkpoints are damaged: remove them to begin again' "${net[@]}" OUT_DIR hopeless
fails 'on two ranks' 1 'all checkpoints in hopeless/checkpoints are damaged' "$apps/tdrun" --nproc-per-node 2 "${net[@]}" OUT_DIR hopeless
head -c 1000000 whole/checkpoints/ckpt_ep_002 >latest
fails 'the one file of --auto-resume' 1 "'latest' cannot be used: .*cut short; remove it to begin again, or give --resume FILE" \
    "$apps/cifar_resnet18" --limit 32 --batch-size 32 --save latest --auto-resume

# Ctrl-C while it tests, which here is much longer than all else: it does not wait for that.
mkdir -p many/links many/val
cp -r data/val/* many/val/
rm many/val/rgb/*
for ((i = 0; i < 20; i++)); do
    ln -s "$work/data/val/rgb" many/links/$i
    ln -s "$work/many/links" many/val/rgb/$i
done
stop_testing() { # stop_testing NAME SIGNAL CODE COMMAND...: stopped at the first batch of the first epoch's test
    local name=$1 signal=$2 code=$3 run
    shift 3
    : >out
    "$@" TEST.DATASET many TEST.BATCH_SIZE 1 >out 2>&1 &
    run=$!
    until_line out '^Test: ' $run
    kill "-$signal" $run
    wait $run
    test $? -eq "$code" && ! grep -q '^Test: \[12[0-9][0-9]/\|tested on' out
    tap $? "$name: SIG$signal ends the test, too" out
    says "$name: after the epoch's last step" 'stopped after step 3 of epoch 1; the same command goes on from there'
}
stop_testing 'alone' INT 130 "${net[@]}" OUT_DIR tested
works 'the same command' "${net[@]}" OUT_DIR tested
says 'tests that epoch' '^Epoch \[1/3\] tested on 12 images'
! grep -q '^Epoch \[1/3\] \[' out
tap $? 'and does not train it again' out
same 'to the same bits' whole/checkpoints/ckpt_ep_003 tested/checkpoints/ckpt_ep_003
stop_testing 'two ranks' TERM 143 "$apps/tdrun" --nproc-per-node 2 "${net[@]}" TRAIN.BATCH_SIZE 2 OUT_DIR both
ls both/checkpoints >listed
grep -qx ckpt_ep_000_step_000003 listed
tap $? 'two ranks: and keeps a checkpoint' listed

# ---- ranks ----
# At so small a learning rate rounding grows slowly: by the last step, kernels of two ISA levels are
# 2e-4 apart, 2e-3 is allowed. What differs more than that is the arithmetic itself.
slow=(MODEL.ARCH resnet18 TRAIN.IM_SIZE 64 OPTIM.MAX_EPOCH 7 OPTIM.BASE_LR 2e-6 OPTIM.WARMUP_EPOCHS 0)
two=("$apps/tdrun" --nproc-per-node 2 "${net[@]}" "${slow[@]}" TRAIN.BATCH_SIZE 2)
apart() { # apart FOLDER STEPS: the largest difference of so many losses from those of one rank
    paste -d , alone/metrics.csv "$1/metrics.csv" | awk -F , -v steps="$2" '
        NR > 1 && $3 != "" && n < steps {
            if ($3 " " $15 ~ /nan|inf/) worst = 999
            d = $3 - $15; d = d < 0 ? -d : d; worst = d > worst ? d : worst; n++
        }
        END { printf "%.3g after %d steps\n", worst, n }'
}
works 'one rank' "${net[@]}" "${slow[@]}" OUT_DIR alone
works 'two ranks' "${two[@]}" OUT_DIR ranks MODEL.SYNCBN True
says 'of half the batch' 'batch 2 on each of 2 ranks'
says 'all images are tested once' 'tested on 12 images'
apart ranks 5 >out
awk '{ exit !($1 < 5e-5 && $3 == 5) }' out
tap $? "with SYNCBN they agree: apart $(cat out)" out
apart ranks 21 >out
awk '{ exit !($1 < 2e-3 && $3 == 21) }' out
tap $? "and go on to: apart $(cat out)" out
works 'two ranks without SYNCBN' "${two[@]}" OUT_DIR own
apart own 5 >out
awk '{ exit !($1 > 1e-2 && $1 < 100 && $3 == 5) }' out
tap $? "do not: apart $(cat out)" out

# ---- what is refused ----
fails 'no such configuration' 1 'nowhere.yaml: cannot be opened' "$apps/train_net" --cfg nowhere.yaml
fails 'an unknown key' 1 "command line: unknown key 'TRAIN.BATCH'; the nearest is TRAIN.BATCH_SIZE" "${net[@]}" TRAIN.BATCH 3
fails 'no such model' 1 "MODEL.ARCH: there is no model 'resnet81'; the nearest name is 'resnet18'" "${net[@]}" OUT_DIR x MODEL.ARCH resnet81
fails 'a model of tokens' 1 'MODEL.ARCH: gpt-nano takes tokens, not images' "${net[@]}" OUT_DIR x MODEL.ARCH gpt-nano
fails 'no such folder' 1 "TRAIN.DATASET and TRAIN.SPLIT: there is no folder 'nowhere/train'. If .* TRAIN.DATASET PHOTOS DATA.VAL_FRACTION 0.2" "${net[@]}" OUT_DIR x TRAIN.DATASET nowhere
fails 'no test folder' 1 "TEST.DATASET and TEST.SPLIT: there is no folder 'data/test'" "${net[@]}" OUT_DIR x TEST.SPLIT test
fails 'too few classes' 1 'data have 5 classes.*MODEL.NUM_CLASSES 4: set it to 5' "${net[@]}" OUT_DIR x MODEL.NUM_CLASSES 4
fails 'a batch of one image' 1 'TRAIN.BATCH_SIZE 1 with images of TRAIN.IM_SIZE 32' "${net[@]}" OUT_DIR x TRAIN.BATCH_SIZE 1
fails 'more than there are' 1 'TRAIN.BATCH_SIZE 64: there are 12 training images; give 12 or fewer$' "${net[@]}" OUT_DIR x TRAIN.BATCH_SIZE 64
mkdir -p taken
(
    flock 9
    echo 4711 >taken/lock
    exec sleep 60
) 9>taken/lock &
holder=$!
until [ -s taken/lock ]; do sleep 0.02; done
fails 'a folder where a run writes' 1 'OUT_DIR taken: another run \(pid 4711\) writes there; wait for it, or give another' "${net[@]}" OUT_DIR taken
kill $holder
works 'as many classes as folders' "${net[@]}" OUT_DIR counted MODEL.NUM_CLASSES None OPTIM.MAX_EPOCH 1 OPTIM.WARMUP_EPOCHS 0 --quiet
grep -q '^  NUM_CLASSES: 5$' counted/config.yaml
tap $? '  which its settings say' counted/config.yaml
! grep -q '^Epoch' out
tap $? '  and --quiet prints no steps' out
works '  and which a test reads from the file' "$apps/test_net" --cfg counted/config.yaml MODEL.NUM_CLASSES None
python3 -c "
import csv, json
rows = [json.loads(line) for line in open('counted/metrics.jsonl')]
table = list(csv.DictReader(open('counted/metrics.csv')))
assert len(rows) == len(table) > 0
for a, b in zip(rows, table):
    assert a == {k: int(v) if k == 'step' else float(v) for k, v in b.items() if v}, (a, b)" >json 2>&1
tap $? 'metrics.jsonl has the numbers of metrics.csv' json
fails 'a configuration that is an image' 1 'large.jpg:1: this is not YAML' "$apps/train_net" --cfg "$pictures/large.jpg" --keys
fails 'a checkpoint of other classes' 1 'MODEL.NUM_CLASSES 6: whole/checkpoints/ckpt_ep_003 was trained with MODEL.NUM_CLASSES 5' \
    "${net[@]}" OUT_DIR whole MODEL.NUM_CLASSES 6
says 'and what to do' 'give the same to go on, or another OUT_DIR to begin again$'
works 'the settings of the run are still there' "$apps/train_net" --cfg whole/config.yaml --keys
same 'as they were' by_written out
mkdir -p task/checkpoints
"$apps/cifar_resnet18" --limit 32 --batch-size 32 --epochs 1 --save task/checkpoints/ckpt_ep_001 >/dev/null 2>&1
fails 'of another task' 1 "is a checkpoint of 'ResNet-18 on CIFAR-10'; this program trains '" "${net[@]}" OUT_DIR task
fails 'of another model' 1 'MODEL.ARCH resnet34: .* was trained with MODEL.ARCH efficientnet_b0' "${net[@]}" OUT_DIR whole MODEL.ARCH resnet34
fails 'of another seed' 1 'RNG_SEED 2: .* was trained with RNG_SEED 1' "${net[@]}" OUT_DIR whole RNG_SEED 2
fails 'no such device' 1 "DEVICE: 'gpu' is no device" "${net[@]}" OUT_DIR x DEVICE gpu
fails 'no such file of weights' 1 'MODEL.WEIGHTS: .*nowhere' "${net[@]}" OUT_DIR x MODEL.WEIGHTS nowhere
fails 'weights of other classes' 1 'MODEL.WEIGHTS: whole/best is of a model with 5 classes, and MODEL.NUM_CLASSES is 6' \
    "${net[@]}" OUT_DIR x MODEL.NUM_CLASSES 6 MODEL.WEIGHTS whole/best
fails 'weights of another model' 1 'MODEL.ARCH resnet34 with 5 classes' "${net[@]}" OUT_DIR x MODEL.ARCH resnet34 MODEL.WEIGHTS whole/best
fails 'no pretrained weights' 1 'MODEL.PRETRAINED: there is no data/models/efficientnet_b0.safetensors' "${net[@]}" OUT_DIR x MODEL.PRETRAINED True
fails 'an OUT_DIR that is a file' 1 'OUT_DIR: config/small.yaml is not a folder' "${net[@]}" OUT_DIR config/small.yaml
fails 'arithmetic of GPUs' 1 'PRECISION tf32 is arithmetic of GPUs' "${net[@]}" OUT_DIR x PRECISION tf32
fails 'a learning rate of 0' 1 'OPTIM.BASE_LR: 0 is out of range' "${net[@]}" OUT_DIR nan OPTIM.BASE_LR 0
fails 'a learning rate that leads to NaN' 1 'the weights hold NaN or infinity|the loss is' "${net[@]}" OUT_DIR nan OPTIM.BASE_LR 1e6 OPTIM.WARMUP_EPOCHS 0 OPTIM.WEIGHT_DECAY 1000
says 'and which key to lower' 'try a lower OPTIM\.BASE_LR'
test ! -e nan/best
tap $? 'and is not the best'
mkdir -p other/val
cp -r data/train other/
cp -r data/val/rgb other/val/
mv other/val/rgb other/val/zebra
fails 'other classes in the test data' 1 "'zebra' has the name of no class.*1 class: 'zebra'.*5 classes: 'grey'" "${net[@]}" OUT_DIR x TEST.DATASET other
mkdir -p more/val
cp -r data/val/* more/val/
mv more/val/grey more/val/zebra
fails 'test_net: classes of other names' 1 "'zebra' has the name of no class" "$apps/test_net" --cfg whole/config.yaml TEST.DATASET more
fails 'test_net: nothing was trained' 1 'OUT_DIR: .*nothing/best' "$apps/test_net" --cfg config/small.yaml OUT_DIR nothing
done_testing
