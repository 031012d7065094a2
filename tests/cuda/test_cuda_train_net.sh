#!/usr/bin/env bash
# train_net's steps on an emulated GPU, captured and eager: the same losses, both accuracies, and
# weights (make EMULATE=1 test).
. "$(dirname "$0")/../help/tap.sh"
if [[ ${BUILD:-build/cc} != *-emulated* ]]; then
    echo 1..1
    echo 'not ok 1 - train_net on a GPU # SKIP make EMULATE=1 test'
    exit 0
fi
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
cd "$work" || exit 1
make_folders data
cat >base.yaml <<'Y'
MODEL: {NUM_CLASSES: 5}
TRAIN: {DATASET: data, IM_SIZE: 32, BATCH_SIZE: 2, WORKERS: 0, PRINT_FREQ: 1, TOPK: 2, ACCUM_STEPS: 2}
TEST: {DATASET: data, IM_SIZE: 36, CROP_SIZE: 32, BATCH_SIZE: 6, PRINT_FREQ: 1}
OPTIM: {MAX_EPOCH: 2, BASE_LR: 0.002, WARMUP_EPOCHS: 0}
RNG_SEED: 1
DEVICE: cuda
Y
what_it_says() { # without the seconds
    sed -nE 's/^(Epoch .*lr [0-9.]*|Test:.*) .*(Loss .*)/\1 \2/p; s/^(Epoch .*tested on .*)/\1/p' "$work/out"
}
works 'train_net' "$apps/train_net" --cfg base.yaml OUT_DIR plain
what_it_says >said
works 'captured' "$apps/train_net" --cfg base.yaml OUT_DIR graph TRAIN.GRAPH True
says 'it says what it does' '^TRAIN.GRAPH: after three eager steps they are recorded, and replayed by cuda:0'
says 'steps are replayed' '^graph: 6 eager steps, 2 recorded, 4 replayed$'
what_it_says >said2
test -s said
tap $? 'there are lines'
same 'the same losses and accuracies' said said2
test "$(weights_of plain/best)" = "$(weights_of graph/best)"
tap $? 'the same weights' out
done_testing
