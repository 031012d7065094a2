#!/usr/bin/env bash
# The programs in a process whose locale writes a comma before decimals, as one is that loads a library
# which calls setlocale: settings, options, checkpoints, metrics, traces and drawings are as elsewhere.
. "$(dirname "$0")/../help/tap.sh"
cd "$work" || exit 1
mkdir locale
localedef -i de_DE -f UTF-8 locale/de_DE.UTF-8 >out 2>&1 ||
    skip_all "${0##*/}" "localedef makes no locale with a comma: $(tail -n 1 out)"
cat >call.c <<'C'
#include <locale.h>
__attribute__((constructor)) static void call(void) { setlocale(LC_ALL, ""); }
C
${CC:-cc} -shared -fPIC -o call.so call.c >out 2>&1 || skip_all "${0##*/}" "no shared object: $(tail -n 1 out)"
[ -z "${SANITIZE:-}" ] || skip_all "${0##*/}" 'a sanitizer must be loaded first'
comma() { # comma COMMAND...
    env LOCPATH="$work/locale" LC_ALL=de_DE.UTF-8 LD_PRELOAD="$work/call.so" "$@"
}
[ "$(comma python3 -c 'import ctypes; b = ctypes.create_string_buffer(9); ctypes.CDLL(None).snprintf(b, 9, b"%.1f", ctypes.c_double(0.5)); print(b.value.decode())')" = 0,5 ] ||
    skip_all "${0##*/}" 'the locale has no comma here'

cat >small.yaml <<'Y'
MODEL: {DUMMY_INPUT: True, DUMMY_SAMPLES: 8, NUM_CLASSES: 3}
TRAIN: {IM_SIZE: 32, BATCH_SIZE: 4, WORKERS: 0}
TEST: {IM_SIZE: 36, CROP_SIZE: 32, BATCH_SIZE: 4}
OPTIM: {BASE_LR: 0.025, STEPS: [0.5, 1.5], LR_POLICY: steps, WARMUP_EPOCHS: 0, EMA_DECAY: 0.5}
RNG_SEED: 1
Y
net=("$apps/train_net" --cfg small.yaml)
works 'a run' "${net[@]}" OUT_DIR point OPTIM.MAX_EPOCH 2
works 'the same with a comma' comma "${net[@]}" OUT_DIR comma OPTIM.MAX_EPOCH 1
! grep -E '[0-9],[0-9]' comma/config.yaml >out
tap $? 'its settings have points' out
works 'it reads its own' comma "${net[@]}" OUT_DIR comma OPTIM.MAX_EPOCH 2
says 'and goes on' '^resumed from comma/checkpoints/ckpt_ep_001'
same 'to the same bits' point/checkpoints/ckpt_ep_002 comma/checkpoints/ckpt_ep_002
cut -d , -f 2-5 point/metrics.csv >expected
cut -d , -f 2-5 comma/metrics.csv >seen
same 'and metrics' expected seen
awk -F , 'NF != 12 { exit 1 }' comma/metrics.csv
tap $? 'each row has its columns' comma/metrics.csv

job=("$apps/cifar_resnet18" --limit 32 --batch-size 16 --epochs 1 --threads 1)
works 'options' comma "${job[@]}" --lr 0.0125 --trace trace.json --memory-picture plan.svg \
    --profile --profile-limits 430.5,28.25 --save-model net
says 'the rate' 'lr 0[.,]0125'
says 'the limits' '430 GFLOP/s|431 GFLOP/s'
python3 -c 'import json; json.load(open("trace.json"))' >out 2>&1
tap $? 'the trace is JSON' out
python3 -c 'import xml.dom.minidom as d
for r in d.parse("plan.svg").getElementsByTagName("rect"): [float(r.getAttribute(a)) for a in ("x", "y") if r.hasAttribute(a)]' >out 2>&1
tap $? 'the drawing has numbers' out
fails 'a rate with a comma is none' 64 "lr: '0,01' is not a number" comma "${job[@]}" --lr 0,01
done_testing
