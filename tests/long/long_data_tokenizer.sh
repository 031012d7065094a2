#!/usr/bin/env bash
# GPT-2's tokens: tokenize against tiktoken and Hugging Face's tokenizers, on a few million tokens. Installs both from
# PyPI into a folder of its own, and takes GPT-2's ranks from openai-whisper's source archive, which has them; or
# TANDEM_PYTHON names a Python that has both, and TANDEM_GPT2_RANKS the file of ranks.
. "$(dirname "$0")/../help/tap.sh"
python=${TANDEM_PYTHON:-python3} ranks=${TANDEM_GPT2_RANKS:-}
if ! "$python" -c 'import tiktoken, tokenizers' 2>/dev/null; then
    python=$work/venv/bin/python
    python3 -m venv "$work/venv" >"$work/out" 2>&1 &&
        "$python" -m pip install -q tiktoken tokenizers >>"$work/out" 2>&1 ||
        skip_all 'tokens are tiktoken'"'"'s' "no tiktoken and tokenizers: $(tail -n 1 "$work/out")"
fi
if [ -z "$ranks" ]; then
    "$python" -m pip download -q --no-deps --no-binary :all: -d "$work" openai-whisper==20250625 >"$work/out" 2>&1 &&
        tar -xzf "$work"/openai_whisper-*.tar.gz -C "$work" --strip-components=3 --wildcards '*/gpt2.tiktoken' ||
        skip_all 'tokens are tiktoken'"'"'s' "no ranks of GPT-2: $(tail -n 1 "$work/out")"
    ranks=$work/gpt2.tiktoken
fi
"$apps/tokenize" --out "$work/x.bin" --vocab "$ranks" "$0" >"$work/out" 2>&1
if grep -q 'has no BPE' "$work/out"; then
    skip_all 'tokens are tiktoken'"'"'s' 'built without PCRE2'
fi
works 'GPT-2, GPT-4'"'"'s pattern, merges, random vocabularies' \
    "$python" tests/data/tokenizer_check.py "$apps/tokenize" "$ranks" "$work"
sed 's/^/# /' "$work/out" | tail -n 1
done_testing
