#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over the kernels that share memory between threads, or write where other
# threads read: memcheck, racecheck and synccheck, over named operations and over the optimizers. Slow: some
# minutes at most. Without compute-sanitizer (it comes with the CUDA toolkit): says so, and ends with 77.
#
#     tests/gpu/sanitize.sh CHECK [DEVICE]        CHECK: build/cc/tests/gpu/check
set -u
check=${1:?usage: tests/gpu/sanitize.sh CHECK [DEVICE]} device=${2:-cuda:0}
names=batch_norm,layer_norm,group_norm,sum,sum_dim,max,max_dim,mean_dims,softmax,log_softmax,cross_entropy
names=$names,max_pool2d,avg_pool2d,sort,cumsum,embedding,permute,gather_dim,scatter_add,rms_norm,dropout2d
sanitizer=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}"/bin/compute-sanitizer 2>/dev/null)
if [ -z "$sanitizer" ]; then
    echo 'there is no compute-sanitizer'
    exit 77
fi
bad=0
under() { # under TOOL PART...
    local tool=$1
    shift
    echo "== $tool: $*"
    "$sanitizer" --tool "$tool" --error-exitcode 9 "$check" --device "$device" "$@" || bad=$((bad + 1))
}
under memcheck ops fp32 $names
under memcheck ops bf16 batch_norm,max_pool2d,sum_dim
under memcheck bits
under racecheck ops fp32 $names
under racecheck ops bf16 batch_norm,max_pool2d,sum_dim
under racecheck bits
under synccheck ops fp32 $names
echo "compute-sanitizer: 7 runs, $bad with errors"
[ $bad -eq 0 ]
