#!/usr/bin/env bash
# Lesson 12, 2,000 steps on TANDEM_TEXT (tinyshakespeare.txt), next to the same program in PyTorch: every loss within
# 1e-4, validation within 0.2 %. Needs PyTorch (TANDEM_PYTHON names a Python). STEPS=2000, EACH=250.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
python=${TANDEM_PYTHON:-python3}
[ -n "${TANDEM_TEXT:-}" ] || skip_all 'a GPT next to PyTorch' 'TANDEM_TEXT is not set'
"$python" -c 'import torch' 2>/dev/null || skip_all 'a GPT next to PyTorch' 'no torch: pip install torch, or TANDEM_PYTHON'
steps=${STEPS:-2000} each=${EACH:-250} twin=$PWD/tests/nn/gpt_twin.py
cd "$work" || exit 1
"$python" "$twin" "$TANDEM_TEXT" "$steps" "$each" >losses 2>err
tap $? "PyTorch's $steps steps" err
works 'gpt_single' "$apps/gpt_single" --steps "$steps" --evaluate-every "$each"
mv out printed
works 'the same by apps/gpt, which logs each step' "$apps/gpt" --epochs $((steps / each)) --epoch-steps "$each" \
    --print-every 1 --log-dir log
works 'every loss, and validation' "$python" "$twin" --compare losses log/metrics.csv printed
sed 's/^/# /' out
done_testing
