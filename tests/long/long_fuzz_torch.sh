#!/usr/bin/env bash
# A minute of random programs in tandem and in PyTorch (tests/fuzz/fuzz_torch.py; make fuzz-torch).
. "$(dirname "$0")/../help/tap.sh"
python=${TANDEM_PYTHON:-python3}
"$python" -c 'import torch' 2>/dev/null || skip_all 'random programs against PyTorch' "no PyTorch for $python"
works 'random programs against PyTorch' "$python" tests/fuzz/fuzz_torch.py "${BUILD:-build/cc}/tests/worker_programs" 60
sed 's/^/# /' "$work/out" | tail -n 1
done_testing
