#!/usr/bin/env bash
# ONNX's own cases of single nodes (tests/autograd/onnx_cases.py), of Debian's libonnx-testdata (1.12: 932 cases, 713
# expressible) or of PyPI's onnx (1.23: 1,884 and 1,177). The number that tandem can express must not fall.
. "$(dirname "$0")/../help/tap.sh"
python=${TANDEM_PYTHON:-python3}
cases=${TANDEM_ONNX:-/usr/share/libonnx-testdata/data/node}
if [ ! -d "$cases" ] && "$python" -c 'import onnx' 2>/dev/null; then
    cases=$work/cases
    "$python" tests/autograd/onnx_cases.py --make "$cases" 2>/dev/null
fi
[ -d "$cases" ] || skip_all "ONNX's cases" 'neither libonnx-testdata nor PyPI'\''s onnx is installed'
works "ONNX's cases" "$python" tests/autograd/onnx_cases.py "${BUILD:-build/cc}/tests/worker_programs" "$cases"
sed 's/^/# /' "$work/out" | tail -n 4
expressible=$(sed -n 's/.* \([0-9]*\) expressible.*/\1/p' "$work/out" | tail -n 1)
least=700
[ "$(find "$cases" -mindepth 1 -maxdepth 1 | wc -l)" -lt 1800 ] || least=1150
[ "${expressible:-0}" -ge $least ]
tap $? "many of them are expressible (${expressible:-0} of at least $least)"
done_testing
