#!/usr/bin/env bash
# A visit to a machine with a GPU that is lent for minutes, from an unpacked kit (make gpu-kit): the first
# call has what decides, the second one what did not fit. docs/gpu-check.md has both as they are typed.
#
#     RESULTS=DIR bash tests/gpu/visit.sh 1      at most 8 minutes
#     RESULTS=DIR bash tests/gpu/visit.sh 2      at once, on the same machine: at most 3
echo 'needs: an H100 or H200 (sm_90), a driver for CUDA 13 (580 or newer), glibc 2.34; a python3 with PyTorch, whose wheels have cuDNN 9.8 or newer, cuBLASLt and NCCL; compute-sanitizer for one stage of the second call'
set -u
cd "$(dirname "$0")/../.." || exit 1
results=${RESULTS:-$PWD/results}
mkdir -p "$results" || exit 1
PYTHON=${PYTHON:-$(command -v python3)}
export PYTHON
if [ -n "$PYTHON" ] && [ -z "${TANDEM_CUDA_LIBRARIES:-}" ]; then
    folders=$("$PYTHON" -c 'import glob, sys
print(":".join(sorted({d for r in sys.path if r for d in glob.glob(r + "/nvidia/*/lib")})))')
    [ -z "$folders" ] || export TANDEM_CUDA_LIBRARIES=$folders
fi
case ${1:-} in
1)
    nvidia-smi -L 2>/dev/null
    nproc
    # About 1 GB from a cold disk: into its cache, while the first stages run.
    for folder in $(tr : ' ' <<<"${TANDEM_CUDA_LIBRARIES:-}"); do
        cat "$folder"/libcudnn* "$folder"/libcublasLt*
    done >/dev/null 2>&1 &
    export BUDGET=${BUDGET:-420}
    ;;
2)
    export BUDGET=${BUDGET:-180} STAGES=${STAGES:-NCCL sanitizer compiled}
    ;;
*)
    echo 'usage: RESULTS=DIR bash tests/gpu/visit.sh 1|2' >&2
    exit 64
    ;;
esac
GPU_CHECK_OUT=$results/visit$1 timeout --kill-after=5 $((BUDGET + 60)) bash tests/gpu/check.sh 2>&1 |
    tee "$results/visit$1.txt"
rc=${PIPESTATUS[0]}
# What comes back is small: the table, the description of the GPU, and one archive.
find "$results/visit$1" -name '*.log' -delete
rm -rf "$results/visit$1/cache"
exit "$rc"
