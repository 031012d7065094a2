#!/usr/bin/env bash
# A program of a CUDA build where there is no GPU, no driver and no library: it starts at once, is
# small, asks the dynamic linker for no CUDA library, computes on the CPU, and --device cuda says
# what is missing. In a mount namespace that hides the toolkit and the driver.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
build=${BUILD:-build/cc}
program=$apps/cifar_resnet18
if [[ $build == *-emulated* ]]; then
    echo 1..1
    echo 'not ok 1 - start without a driver # SKIP the emulated GPU needs none'
    exit 0
fi

ldd "$apps"/* 2>/dev/null | grep -iE 'lib(cuda|cudart|cublas|cudnn|nccl|nv)' >"$work/out"
tap $((! $?)) 'no program asks for a CUDA library' "$work/out"

largest=0
for app in "$apps"/*; do
    [[ -x $app && $app != *.o ]] || continue
    strip -o "$work/stripped" "$app" 2>/dev/null || continue
    size=$(stat -c %s "$work/stripped")
    [ "$size" -gt "$largest" ] && largest=$size name=${app##*/}
done
echo "the largest stripped program: $name, $largest bytes" >"$work/out"
# (4.96 MB with 30 operations on elements; with all of them, and those on shapes, 6.2: the table of kernels keeps each.
# With a GPT's kernels on GPUs, stb_image, leaves, stages and slices, 6.9; with norms and residuals of a GPT's layer in
# two dtypes, 7.02.)
[ "$largest" -gt 0 ] && [ "$largest" -le 7200000 ]
tap $? 'programs are under 7.2 MB' "$work/out"

# The quickest of 20 starts, and the memory of all of them (this measures Python's own as well, which is
# about 10 MB): loading the program, and its version.
python3 - "$program" >"$work/out" 2>&1 <<'END'
import os, sys, time
def start():
    began = time.monotonic()
    quiet = [(os.POSIX_SPAWN_OPEN, 1, '/dev/null', os.O_WRONLY, 0)]
    child = os.posix_spawn(sys.argv[1], [sys.argv[1], '--version'], os.environ, file_actions=quiet)
    status, usage = os.wait4(child, 0)[1:]
    return 1e3 * (time.monotonic() - began), usage.ru_maxrss, status
times, memory, status = zip(*(start() for _ in range(20)))
print('start: %.1f ms; resident: %.1f MB' % (min(times), max(memory) / 1024))
sys.exit(any(status) or min(times) > (20 if 'TANDEM_LONG' in os.environ else 60) or max(memory) > 20 * 1024)
END
tap $? 'it starts within 20 ms (a machine that others use: 60) and 20 MB' "$work/out"

# hidden COMMAND...: where there is no toolkit, no driver and no wheel's library
hidden() {
    unshare -rm bash -c '
        for folder in /usr/local/cuda* /opt/cuda*; do
            [ ! -d "$folder" ] || mount -t tmpfs none "$folder" || exit 99
        done
        for file in /usr/lib/*/libcuda.so* /usr/lib/libcuda.so* /usr/lib64/libcuda.so*; do
            [ ! -e "$file" ] || mount --bind /dev/null "$file" || exit 99
        done
        unset LD_LIBRARY_PATH CUDA_HOME
        exec "$@"' hidden "$@"
}
if ! hidden true 2>/dev/null; then
    tap 0 'no mount namespaces here: the rest is not run # SKIP'
    done_testing
fi
works 'it computes on the CPU where nothing of CUDA is' hidden "$apps/wine_single" 1
rm -f model_0.safetensors
if nm "$program" 2>/dev/null | grep -q td_cuda_open; then
    why='cuda:0 cannot be used: there is no NVIDIA driver \(libcuda\.so\.1'
else
    why='cuda:0 cannot be used: this build has no CUDA kernels'
fi
fails '--device cuda names what is missing' 1 "$why" hidden "$program" --device cuda
fails 'so does a second GPU' 1 'cuda:1 cannot be used: ' hidden "$program" --device cuda:1
TANDEM_DEVICE=cuda fails 'a lesson says so, too' 1 "^wine_single: TANDEM_DEVICE: $why" hidden "$apps/wine_single"
fails 'a device that is none' 1 "'cudaX' is no device" "$program" --device cudaX
done_testing
