#!/usr/bin/env bash
# AArch64, built by a cross compiler and run by qemu-user (make aarch64; the packages: make deps-cross):
# kernels at each instruction set, lesson 1, a step of the main job, two ranks, and how much of the
# kernels' loops are multiply-adds, next to AVX2's. Nothing is timed: emulated, all is slow. (qemu must not
# be given the cross compiler's own C library, -L: where libc6:arm64 is, too, a program gets the loader of
# one and the library of the other, and its first thread never starts.)
. "$(dirname "$0")/help/tap.sh"
cross=aarch64-linux-gnu
for tool in $cross-gcc $cross-objdump qemu-aarch64; do
    command -v "$tool" >/dev/null || skip_all aarch64.sh "no $tool: make deps-cross"
done
B=build/$cross-gcc-nocuda
top=$PWD
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that started this
kernels='test_cpu_gemm test_cpu_conv test_kernels_products_bf16 test_kernels_layer_norm test_ops_layers test_ops_values'
programs=
for name in $kernels; do programs="$programs $B/tests/$name"; done
for name in wine_single wine_ddp_launch cifar_resnet18; do programs="$programs $B/apps/$name"; done
# shellcheck disable=SC2086
works 'it builds without a warning' make -j2 CC=$cross-gcc CUDA=0 WERROR=1 $programs
[ "$tap_failures" -eq 0 ] || done_testing

export TANDEM_CONV_SHAPES=6 # a few, at each instruction set and number of threads
for name in $kernels; do
    works "$name" qemu-aarch64 "$B/tests/$name"
done

# ---- the loops ----

share() { python3 tests/help/multiply_adds.py "$@" 2>>"$work/out"; }
native=build/cc-nocuda
[ -f build/cc/tensor/cpu/gemm_kernels.o ] && native=build/cc
works "AVX2's kernels" make -j2 $([ $native = build/cc ] || echo CUDA=0) $native/tensor/cpu/gemm_kernels.o
avx2=$(share objdump $native/tensor/cpu/gemm_kernels.o avx2_tile_6_2)
for tile in gemm_kernels:f32 gemm_kernels:f64 bf16_neon:bf16; do
    : >"$work/out"
    neon=$(share $cross-objdump "$B/tensor/cpu/${tile%:*}.o" "${tile#*:}_tile_6_4")
    [ $((100 * ${neon:-0})) -ge $((85 * ${avx2:-999})) ]
    tap $? "multiply-adds in NEON's loop of ${tile#*:}: ${neon:-?} %, in AVX2's: ${avx2:-?} %" "$work/out"
done

# ---- training ----

ln -s "$PWD/data" "$work/data"
cd "$work" || exit 1
works 'lesson 1' qemu-aarch64 "$top/$B/apps/wine_single"
cp out losses
works "its losses of 100 epochs are PyTorch's" \
    python3 "$top/tests/help/compare_losses.py" losses "$top/tests/golden/wine_losses.txt" 0
works 'the main job, a step' qemu-aarch64 "$top/$B/apps/cifar_resnet18" \
    --limit 2 --batch-size 2 --epochs 1 --precision bf16
says 'it ends with a test' '^== test: 2 images'
place="MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) WORLD_SIZE=2"
wine="qemu-aarch64 $top/$B/apps/wine_ddp_launch"
together 'two ranks' "$place RANK=0 $wine" "$place RANK=1 $wine"
says 'they have trained' '^Test: 36/36 right'
done_testing
