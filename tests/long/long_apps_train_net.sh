#!/usr/bin/env bash
# train_net on photographs: ResNet-18 at 64 pixels learns the sample pictures by heart; Ctrl-C and
# resume in the middle of it end with the same bits; two ranks with SYNCBN have one rank's losses for
# 20 steps. The pictures are TANDEM_PICTURES, or drawn here (those of
# train_net.sh show one scene, in several formats, which nothing could tell apart).
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
cd "$work" || exit 1
if [ -n "${TANDEM_PICTURES:-}" ]; then
    mkdir data
    ln -s "$TANDEM_PICTURES" data/train
    ln -s "$TANDEM_PICTURES" data/val
else
    python3 - data <<'DRAW' # stripes of five colours
import math, os, random, struct, sys, zlib
random.seed(1)
side = 72
colours = [(200, 60, 60), (60, 200, 60), (60, 60, 200), (190, 190, 60), (60, 190, 190)]
for i in range(50):
    angle, wave = random.uniform(0, math.pi), random.uniform(5, 12)
    light = [colours[i % 5], (128, 128, 128)]
    rows = bytearray()
    for y in range(side):
        for x in range(side):
            up = math.sin((x * math.cos(angle) + y * math.sin(angle)) / wave * 2 * math.pi) > 0
            rows += bytes(int(c + random.uniform(-30, 30)) for c in light[up])
    data = b''.join(b'\0' + rows[3 * side * y:3 * side * (y + 1)] for y in range(side))
    png = b'\x89PNG\r\n\x1a\n' + b''.join(
        struct.pack('>I', len(part)) + name + part + struct.pack('>I', zlib.crc32(name + part))
        for name, part in ((b'IHDR', struct.pack('>IIBBBBB', side, side, 8, 2, 0, 0, 0)),
                           (b'IDAT', zlib.compress(data)), (b'IEND', b'')))
    for split in 'train', 'val':
        folder = '%s/%s/colour%d' % (sys.argv[1], split, i % 5)
        os.makedirs(folder, exist_ok=True)
        with open('%s/%02d.png' % (folder, i), 'wb') as f:
            f.write(png)
DRAW
fi
classes=$(find -L data/train -mindepth 1 -maxdepth 1 -type d | wc -l)
count=$(find -L data/train -mindepth 2 -type f | wc -l)
echo "# $count pictures in $classes classes"
net=("$apps/train_net" --cfg "$repository/apps/tools/config/resnet18.yaml" MODEL.NUM_CLASSES "$classes"
    TRAIN.DATASET data TEST.DATASET data TRAIN.IM_SIZE 64 TEST.IM_SIZE 64 TEST.CROP_SIZE 64 RNG_SEED 1
    TRAIN.KEEP_CHECKPOINTS 1)
learn=("${net[@]}" TRAIN.BATCH_SIZE $((count < 32 ? 4 : 16)) TRAIN.MIN_AREA 0.6 OPTIM.MAX_EPOCH 40
    OPTIM.BASE_LR 0.05 OPTIM.WARMUP_EPOCHS 2)

works 'forty epochs' "${learn[@]}" OUT_DIR whole
says 'all pictures are known' "^Epoch \[40/40\] tested on $count images: Loss 0\.[0-9]+  Acc@1 100\.000 "
: >out
"${learn[@]}" OUT_DIR stopped >out 2>&1 &
run=$!
until_line out '^Epoch \[9/40\]' $run
kill -INT $run
wait $run
test $? -eq 130
tap $? 'Ctrl-C in the tenth' out
works 'the same command' "${learn[@]}" OUT_DIR stopped
says 'goes on' '^resumed from stopped/checkpoints/ckpt_ep_0'
same 'to the same bits' whole/checkpoints/ckpt_ep_040 stopped/checkpoints/ckpt_ep_040
works 'test_net' "$apps/test_net" --cfg stopped/config.yaml
says 'knows them too' 'Acc@1 100\.000'

# At so small a learning rate rounding does not grow: what differs is the arithmetic itself.
batch=$((count < 32 ? 4 : 14)) # so that both have as many batches in an epoch
slow=(OPTIM.BASE_LR 2e-6 OPTIM.WARMUP_EPOCHS 0 OPTIM.MAX_EPOCH 7 TRAIN.PRINT_FREQ 1)
works 'one rank' "${net[@]}" "${slow[@]}" TRAIN.BATCH_SIZE $batch OUT_DIR one
for sync in True False; do
    works "two ranks, SYNCBN $sync" "$apps/tdrun" --nproc-per-node 2 "${net[@]}" "${slow[@]}" \
        TRAIN.BATCH_SIZE $((batch / 2)) MODEL.SYNCBN $sync OUT_DIR two$sync
    paste -d , one/metrics.csv two$sync/metrics.csv | awk -F , '
        NR > 1 && $3 != "" { d = $3 - $15; d = d < 0 ? -d : d; worst = d > worst ? d : worst; n++ }
        END { print worst, n }' >out
    if [ $sync = True ]; then
        awk '{ exit !($1 < 1e-4 && $2 >= 20) }' out
        tap $? "its losses agree (worst difference and steps: $(cat out))" out
    else
        awk '{ exit !($1 > 1e-2) }' out
        tap $? "they do not (worst difference and steps: $(cat out))" out
    fi
done
done_testing
