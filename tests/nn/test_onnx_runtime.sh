#!/usr/bin/env bash
# Models, layers and single operations, exported and run by onnxruntime, give tandem's results. With
# TANDEM_LONG all of td_model's. Needs PyPI's onnx and onnxruntime (TANDEM_PYTHON names a Python).
# run: plain
. "$(dirname "$0")/../help/tap.sh"
python=${TANDEM_PYTHON:-python3}
worker=${BUILD:-build/cc}/tests/worker_model
"$python" tests/nn/onnx_run.py --check 2>"$work/err" ||
    skip_all 'ONNX files, run' "$(tail -n 1 "$work/err"): pip install onnx onnxruntime, or TANDEM_PYTHON"
export OMP_NUM_THREADS=2

agree() { # agree NAME FOLDER LEAST: so many files at least are equal to 1e-5
    works "$1" "$python" tests/nn/onnx_run.py "$work/$2" 1e-5
    sed 's/^/# /' "$work/out" | tail -n 1
    [ "$(find "$work/$2" -name '*.onnx' | wc -l)" -ge "$3" ]
    tap $? "at least $3 files"
}

mkdir "$work/models" "$work/layers" "$work/cases"
models='resnet18 efficientnet_b0 botnet50'
if [ -n "${TANDEM_LONG:-}" ]; then
    models=$(basename -s .yaml apps/tools/config/*.yaml)
fi
# One at a time: a large model's file is removed once it was run.
for model in $models; do
    # shellcheck disable=SC2086
    works "$model is exported" "$worker" onnx "$work/models" 64 $model
    works "$model: the same logits" "$python" tests/nn/onnx_run.py "$work/models" 1e-5
    sed "s/^/# $model: /" "$work/out" | tail -n 1
    rm -f "$work/models"/*
done
for model in gpt-nano 'gpt-nano layers=2 kv_heads=2 rope rms_norm swiglu untied no_bias'; do
    works "$model is exported" "$worker" onnx "$work/models" 50 "$model"
    works "$model: the same logits" "$python" tests/nn/onnx_run.py "$work/models" 1e-5
    sed "s/^/# $model: /" "$work/out" | tail -n 1
    rm -f "$work/models"/*
done
works 'layers are exported' "$worker" onnx "$work/layers" layers
agree 'layers: the same results' layers 24
works 'cases are exported' "$worker" onnx "$work/cases" cases
# What ONNX has no form for, or tandem writes none.
! grep -vE '^(batch_norm.*evaluation mode|cross_entropy.*label smoothing|dropout[-a-z_]*: .* no form)' "$work/out" >"$work/others"
tap $? 'but for dropout, label smoothing and training' "$work/others"
agree 'cases: the same results' cases 290
done_testing
