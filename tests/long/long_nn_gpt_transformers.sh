#!/usr/bin/env bash
# GPTs that transformers trained and saved give the same logits and greedy tokens in tandem, and transformers
# loads what tandem saves; PEFT takes tandem's adapters. Needs PyPI's torch, transformers, and for the last peft
# (TANDEM_PYTHON names a Python).
# run: plain
. "$(dirname "$0")/../help/tap.sh"
python=${TANDEM_PYTHON:-python3}
worker=${BUILD:-build/cc}/tests/worker_gpt
"$python" tests/nn/gpt_transformers.py --check 2>"$work/err" ||
    skip_all 'GPTs of transformers' "$(tail -n 1 "$work/err"): pip install torch transformers, or TANDEM_PYTHON"
tokens=$("$python" tests/nn/gpt_transformers.py tokens)

agree() { # agree NAME FOLDER
    # shellcheck disable=SC2086
    works "$1: tandem loads it" "$worker" run "$2" "$work/out.safetensors" $tokens
    works "$1: the same logits and greedy tokens" "$python" tests/nn/gpt_transformers.py compare "$2" "$work/out.safetensors"
    sed 's/^/# /' "$work/out" | tail -n 1
}

for kind in gpt2 llama; do
    works "transformers makes a $kind" "$python" tests/nn/gpt_transformers.py make $kind "$work/$kind"
    agree "$kind of transformers" "$work/$kind"
done
if "$python" -c 'import peft' 2>/dev/null; then
    works 'apps/gpt trains adapters for the gpt2' "$apps/gpt" --init "$work/gpt2" --data tests/nn/gpt_transformers.py --val-fraction 0 \
        --lora 4 --lora-alpha 8 --lr 0.01 --epochs 1 --epoch-steps 30 --save-model "$work/adapter"
    works 'and merges them' "$apps/gpt" --model "$work/gpt2" --adapter "$work/adapter" --merge "$work/merged"
    # shellcheck disable=SC2086
    works 'tandem runs the result' "$worker" run "$work/merged" "$work/out.safetensors" $tokens
    works 'PEFT computes the same with the adapters' "$python" tests/nn/gpt_transformers.py compare "$work/gpt2" \
        "$work/out.safetensors" "$work/adapter"
    sed 's/^/# /' "$work/out" | tail -n 1
else
    echo '# adapters skipped: pip install peft'
fi
for text in 'gpt-nano' 'gpt-nano untied layers=2' 'gpt-nano kv_heads=2 rope rms_norm swiglu no_bias eps=1e-6' \
    'gpt-nano rope rms_norm swiglu no_bias untied rope_base=50000'; do
    works "tandem saves '$text'" "$worker" make "$work/own" "$text"
    agree "'$text' of tandem" "$work/own"
done
done_testing
