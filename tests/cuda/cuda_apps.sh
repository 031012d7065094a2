# Sourced by the tests of programs on emulated GPUs, in place of tap.sh. Not a test itself.
# A step of ResNet-18 takes about a second there: four images, and as few steps as show something.
. "$(dirname "$0")/../help/tap.sh"
[[ ${BUILD:-build/cc} == *-emulated* ]] || skip_all 'programs on a GPU' 'make EMULATE=1 test'
app=$apps/cifar_resnet18
few=(--limit 4 --batch-size 4 --workers 1 --lr 0.0001)

# near NAME FOLDER FOLDER: there are steps, and their losses differ by 2 % at most in two runs
near() {
    paste -d, "$2/metrics.csv" "$3/metrics.csv" >"$work/out"
    awk -F, 'NR == 1 { second = NF / 2 + 2; next }
        $2 != "" || $second != "" { n++; d = $2 - $second
            if (d * d > (0.02 * $second) ^ 2 || /nan|inf/) bad = 1 }
        END { exit bad || n == 0 }' "$work/out"
    tap $? "$1" "$work/out"
}
