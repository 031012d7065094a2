#!/bin/sh
# Looks for the libraries and tools that tandem can use, writes them to a file for make, and prints
# what was found, what each piece brings, and how to get what is missing.
#
# usage: CC=cc [KIT=1] [CUDA=auto|0|1] [CUDA_HOME=...] [CUDA_ARCHS="75 80 90"] scripts/detect.sh build/config.cc.mk
#
# KIT=1 leaves out the libraries whose versions differ from system to system and that a GPU's check can do without.
# A library counts as found only when a small program with it compiles and links: a package that is
# registered but does not link is missing.
set -u
out=$1
CC=${CC:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cflags= libs=
: >"$work/config"
: >"$work/table"
: >"$work/missing"

row() { # row STATE NAME BRINGS
    printf '  %-8s %-14s %s\n' "$1" "$2" "$3" >>"$work/table"
}

missing() { # missing NAME BRINGS HOW
    row missing "$1" "$2"
    printf '  %-14s %s\n' "$1" "$3" >>"$work/missing"
}

# library NAME PKG FALLBACK-LIBS HEADER EXPRESSION: sets found_cflags and found_libs.
library() {
    case ${KIT:+$1} in
        curl | archive | md | jpeg | png | pcre2) return 1 ;;
    esac
    found_cflags= found_libs=$3
    if command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$2" 2>/dev/null; then
        found_cflags=$(pkg-config --cflags "$2")
        found_libs=$(pkg-config --libs "$2")
    fi
    {
        # cmocka.h wants these four in front.
        printf '#include <stdarg.h>\n#include <stddef.h>\n#include <setjmp.h>\n#include <stdint.h>\n#include <stdio.h>\n'
        printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <%s>\nint main(void) { %s; return 0; }\n' "$4" "$5"
    } >"$work/try.c"
    # shellcheck disable=SC2086
    $CC $found_cflags -o "$work/try" "$work/try.c" $found_libs >/dev/null 2>&1
}

use() { # use NAME: a library of the core
    echo "TD_HAVE_$1 := 1" >>"$work/config"
    cflags="$cflags -DTD_HAVE_$1=1 $found_cflags"
    libs="$libs $found_libs"
}

if ! echo 'int main(void) { return 0; }' >"$work/try.c" || ! $CC -o "$work/try" "$work/try.c" 2>"$work/cc"; then
    echo "tandem: the compiler '$CC' does not work here: $(head -n 1 "$work/cc")" >&2
    echo "        install one (make deps), or name one: make CC=..." >&2
    exit 1
fi

# What a program does not use need not be in it. Debuggers have what they need from -g.
small='-ffunction-sections -fno-asynchronous-unwind-tables'
# shellcheck disable=SC2086
if $CC $small -Wl,--gc-sections -o "$work/try" "$work/try.c" >/dev/null 2>&1; then
    {
        echo "TD_SMALL_CFLAGS := $small"
        echo "TD_SMALL_LDFLAGS := -Wl,--gc-sections"
    } >>"$work/config"
fi

# Some hundred test programs are linked, by these in a third of the time.
for linker in lld gold; do
    # shellcheck disable=SC2086
    if $CC -fuse-ld=$linker -Wl,--gc-sections -o "$work/try" "$work/try.c" >/dev/null 2>&1; then
        echo "TD_FAST_LD := -fuse-ld=$linker" >>"$work/config"
        break
    fi
done

# Objects fit into programs and into shared objects. That nobody replaces the library's own functions from
# outside lets them be inlined as before.
pic='-fPIC -fno-semantic-interposition'
# shellcheck disable=SC2086
$CC -Werror $pic -c -o "$work/try.o" "$work/try.c" >/dev/null 2>&1 || pic=-fPIC
echo "TD_PIC := $pic" >>"$work/config"
shared='-Wl,--version-script=scripts/exports.map -Wl,-z,defs'
# shellcheck disable=SC2086
if $CC $pic -shared -Wl,-soname,try.so.0 $shared -o "$work/try.so" "$work/try.c" >/dev/null 2>&1; then
    echo "TD_SHARED := $shared" >>"$work/config"
fi

# gcc writes out what a vectorised loop leaves over, up to this many instructions a loop.
short='--param=max-completely-peeled-insns=100'
if $CC -Werror $short -c -o "$work/try.o" "$work/try.c" >/dev/null 2>&1; then
    echo "TD_SHORT_LOOPS := $short" >>"$work/config"
fi
# gcc would write the kernels' loops out once more for rows that lie side by side, and for each number of
# columns; and on AArch64 it would load ahead more than its registers hold beside a tile's sums.
once='-fno-version-loops-for-strides -fno-unswitch-loops -fno-schedule-insns'
# shellcheck disable=SC2086
if $CC -Werror $once -c -o "$work/try.o" "$work/try.c" >/dev/null 2>&1; then
    echo "TD_LOOPS_ONCE := $once" >>"$work/config"
fi
# Whose plain C is for processors of long ago: elsewhere it is all there is.
case $($CC -dumpmachine) in
    x86_64*) echo 'TD_FOR_X86 := 1' >>"$work/config" ;;
esac

brings='checkpoints (needed)'
if library cjson libcjson -lcjson cjson/cJSON.h 'return cJSON_Version() == 0'; then
    use CJSON
    row found libcjson "$brings"
else
    missing libcjson "$brings" 'make deps'
fi

brings='--download: transfers'
if library curl libcurl -lcurl curl/curl.h 'return curl_version() == 0'; then
    use CURL
    row found libcurl "$brings"
else
    missing libcurl "$brings" 'make deps'
fi

brings='--download: unpacking the archive'
if library archive libarchive -larchive archive.h 'return archive_version_number() == 0'; then
    use ARCHIVE
    row found libarchive "$brings"
else
    missing libarchive "$brings" 'make deps'
fi

brings='--download: checksums'
if library md libmd -lmd md5.h 'MD5_CTX c; MD5Init(&c)'; then
    use MD
    row found libmd "$brings"
else
    missing libmd "$brings" 'make deps'
fi

brings='folders of images: JPEGs'
if library jpeg libjpeg -ljpeg jpeglib.h 'struct jpeg_error_mgr e; jpeg_std_error(&e)'; then
    use JPEG
    row found libjpeg "$brings"
else
    missing libjpeg "$brings" 'make deps'
fi

brings='folders of images: PNGs'
if library png libpng -lpng png.h 'png_access_version_number() == 0'; then
    use PNG
    row found libpng "$brings"
else
    missing libpng "$brings" 'make deps'
fi

# A header that is compiled in: the trial is the file that does so. (-isystem: without our warnings.)
brings='folders of images: BMP, GIF, TGA, PSD, PNM, HDR'
found_libs= found_cflags=$(pkg-config --cflags stb 2>/dev/null | sed 's/-I/-isystem /g')
# shellcheck disable=SC2086
if $CC -std=c11 -D_GNU_SOURCE -I. -DTD_HAVE_STB=1 $found_cflags -c -o "$work/try.o" data/images/bitmap_stb.c >/dev/null 2>&1; then
    use STB
    row found stb_image "$brings"
else
    missing stb_image "$brings" 'make deps'
fi

brings="text: GPT-2's tokens (BPE)"
if library pcre2 libpcre2-8 -lpcre2-8 pcre2.h 'return pcre2_config(PCRE2_CONFIG_UNICODE, NULL) < 0'; then
    use PCRE2
    row found libpcre2 "$brings"
else
    missing libpcre2 "$brings" 'make deps'
fi

brings='train_net: configurations'
if library yaml yaml-0.1 -lyaml yaml.h 'yaml_parser_t p; yaml_parser_initialize(&p)'; then
    use YAML
    row found libyaml "$brings"
else
    missing libyaml "$brings" 'make deps'
fi

brings='make test'
if library cmocka cmocka -lcmocka cmocka.h '(void)cmocka_set_message_output'; then
    echo "TD_HAVE_CMOCKA := 1" >>"$work/config"
    echo "TD_TEST_LIBS := $found_libs" >>"$work/config"
    cflags="$cflags $found_cflags"
    row found cmocka "$brings"
else
    missing cmocka "$brings" 'make deps test'
fi

brings='a peer in bench/: single operations'
if library onednn dnnl -ldnnl oneapi/dnnl/dnnl.h 'return dnnl_version() == 0'; then
    echo "TD_ONEDNN_CFLAGS := -DTD_HAVE_ONEDNN=1 $found_cflags" >>"$work/config"
    echo "TD_ONEDNN_LIBS := $found_libs" >>"$work/config"
    row found libdnnl "$brings"
else
    missing libdnnl "$brings" 'make deps-bench'
fi

# The gloo backend is C++ and needs a libgloo that has all that it uses: the trial is the shim itself.
brings='the gloo backend: several hosts'
cxx=${CXX:-c++} mpicc=${MPICC:-mpicc}
case $($CC -dumpmachine) in
    "$(uname -m)"*) ;;
    *) cxx=$(echo "$CC" | sed 's/gcc/g++/') mpicc=false ;; # a cross compiler; the others are this machine's
esac
gloo_flags='-std=c++14 -O2 -g -fPIC -shared -fvisibility=hidden -Wl,-z,defs'
gloo_libs='-lgloo -ldl -pthread'
# shellcheck disable=SC2086
if $cxx $gloo_flags -I. -o "$work/try.so" dist/comm/engines/p2p/gloo/shim.cc dist/comm/engines/p2p/gloo/backoff.cc $gloo_libs >/dev/null 2>&1; then
    {
        echo "TD_HAVE_GLOO := 1"
        echo "TD_CXX := $cxx"
        echo "TD_GLOO_CXXFLAGS := $gloo_flags"
        echo "TD_GLOO_LIBS := $gloo_libs"
    } >>"$work/config"
    row found libgloo "$brings"
else
    missing libgloo "$brings" 'make deps'
fi

# The mpi backend, likewise. Several MPIs may be installed: MPICC names one.
brings='the mpi backend: clusters that have MPI'
mpi_flags='-std=c11 -D_GNU_SOURCE -O2 -g -fPIC -shared -fvisibility=hidden'
# shellcheck disable=SC2086
if $mpicc $mpi_flags -I. -o "$work/try.so" dist/comm/engines/p2p/mpi/*.c -pthread >/dev/null 2>&1; then
    {
        echo "TD_HAVE_MPI := 1"
        echo "TD_MPICC := $mpicc"
        echo "TD_MPI_CFLAGS := $mpi_flags"
    } >>"$work/config"
    row found mpi "$brings"
else
    missing mpi "$brings" 'make deps test'
fi

# CUDA: the toolkit (nvcc, headers, the static runtime) and cuDNN's headers are needed to build, none
# of it to run: the trial compiles kernels for every architecture and links them.
brings='--device cuda'
cuda_headers() { # the folders that hold a header, one a line: the toolkit's, Python wheels', the system's
    for folder in "$cuda_home/include" "$cuda_home"/targets/*/include /usr/include /usr/include/*-linux-gnu \
        $(python3 -c 'import site, sys; print(*site.getsitepackages(), site.getusersitepackages())' 2>/dev/null |
            tr ' ' '\n' | sed 's|$|/nvidia/*/include|'); do
        [ -f "$folder/$1" ] && echo "$folder"
    done
}
try_cuda() { # try_cuda HOME: sets cuda_home, nvcc, cuda_flags, cuda_cflags, cuda_libs; otherwise why
    cuda_home=$1
    [ -x "$cuda_home/bin/nvcc" ] || { why="no nvcc in $cuda_home/bin"; return 1; }
    nvcc=$cuda_home/bin/nvcc
    known=$("$nvcc" --list-gpu-arch 2>/dev/null | sed 's/compute_//')
    cuda_flags='-std=c++17 -O1 -fmad=false -ftz=true -Xcompiler -fPIC,-fno-threadsafe-statics,-fno-exceptions,-fno-rtti,-fno-asynchronous-unwind-tables'
    # -O1 is for the host's code, which starts kernels; theirs is optimised in any case.
    # -fmad=false, -ftz=true: as the CPU's kernels, only fma() is fused, and denormals count as zero.
    # The small form of compressed kernels needs a driver of CUDA 13, which that runtime needs anyway.
    release=$("$nvcc" --version | sed -n 's/.*release \([0-9][0-9]*\)\..*/\1/p')
    if [ "${release:-0}" -ge 13 ]; then
        cuda_flags="$cuda_flags --compress-mode=size"
    else
        cuda_flags="$cuda_flags -Xfatbin -compress-all"
    fi
    newest=
    for arch in ${CUDA_ARCHS:-75 80 90}; do
        if [ -n "${CUDA_ARCHS:-}" ] || echo "$known" | grep -qx "$arch"; then
            cuda_flags="$cuda_flags -gencode arch=compute_$arch,code=sm_$arch"
            newest=$arch
        fi
    done
    cuda_flags="$cuda_flags -gencode arch=compute_$newest,code=compute_$newest"
    dnn=$(cuda_headers cudnn.h | head -n 1)
    [ -n "$dnn" ] || { why="cudnn.h was not found: pip install nvidia-cudnn-cu${release:-13}, or NVIDIA's package libcudnn9-dev-cuda-${release:-13}"; return 1; }
    cuda_cflags="-isystem $cuda_home/include"
    [ "$dnn" = "$cuda_home/include" ] || cuda_cflags="$cuda_cflags -isystem $dnn"
    cuda_libs=
    for folder in "$cuda_home/lib64" "$cuda_home/lib" "$cuda_home"/targets/*/lib; do
        if [ -f "$folder/libcudart_static.a" ]; then
            cuda_libs="-L$folder -lcudart_static -ldl -lpthread -lrt"
            break
        fi
    done
    [ -n "$cuda_libs" ] || { why="no libcudart_static.a in $cuda_home"; return 1; }
    printf '__global__ void k(int *x) { *x = 1; }\nextern "C" void go(int *x) { k<<<1, 1>>>(x); }\n' >"$work/try.cu"
    # shellcheck disable=SC2016
    printf '%s\n' '#include <cuda_runtime_api.h>' '#include <cublasLt.h>' '#include <cudnn.h>' 'void go(int *x);' \
        '#if CUDART_VERSION < 12050' '#error "CUDA 12.5 or newer is needed"' '#endif' \
        '#if CUDNN_VERSION < 90800' '#error "cuDNN 9.8 or newer is needed"' '#endif' \
        'int main(void) { int n = 0; go(0); return cudaGetDeviceCount(&n) > 0 && n < 0; }' >"$work/try.c"
    # shellcheck disable=SC2086
    "$nvcc" $cuda_flags -c -o "$work/try-cu.o" "$work/try.cu" >"$work/cuda" 2>&1 &&
        $CC $cuda_cflags -o "$work/try" "$work/try.c" "$work/try-cu.o" $cuda_libs >"$work/cuda" 2>&1 ||
        { why="the trial does not compile: $(grep -m 1 -i 'error\|fatal' "$work/cuda")"; return 1; }
}
if [ "${CUDA:-auto}" = 0 ]; then
    row off CUDA "$brings (CUDA=0)"
else
    found= reasons=
    on_path=$(command -v nvcc 2>/dev/null)
    for home in ${CUDA_HOME:-${on_path:+"$(dirname "$(dirname "$(readlink -f "$on_path")")")"} /usr/local/cuda /opt/cuda /usr/lib/cuda}; do
        if try_cuda "$home"; then
            found=$home
            break
        fi
        reasons="$reasons${reasons:+; }$why"
    done
    if [ -n "$found" ]; then
        if command -v ccache >/dev/null 2>&1; then
            nvcc="ccache $nvcc"
        fi
        {
            echo "TD_HAVE_CUDA := 1"
            echo "TD_NVCC := $nvcc"
            echo "TD_NVCCFLAGS := $cuda_flags"
            echo "TD_CUDA_CFLAGS := $cuda_cflags"
            echo "TD_CUDA_LIBS := $cuda_libs"
        } >>"$work/config"
        row found CUDA "$brings ($found)"
    elif [ "${CUDA:-auto}" = 1 ]; then
        echo "tandem: CUDA=1, but it cannot be used: $reasons" >&2
        echo "        name the toolkit's folder: make CUDA_HOME=...; or build without: make CUDA=0" >&2
        exit 1
    else
        missing CUDA "$brings" "NVIDIA's toolkit (12.5 or newer) and cuDNN's headers (9.8 or newer); CUDA_HOME names its folder ($reasons)"
    fi
fi

tool() { # tool COMMAND BRINGS HOW
    if command -v "$1" >/dev/null 2>&1; then
        row found "$1" "$2"
    else
        missing "$1" "$2" "$3"
    fi
}
tool python3 'some of the tests' 'make deps test'
tool slurmctld 'tests in a small Slurm cluster' 'make deps test'
tool clang 'make fuzz' 'make deps-dev'
tool clang-format 'make format and lint' 'make deps-dev'
tool clang-tidy 'make lint' 'make deps-dev'
tool gnuplot 'plots of training curves' 'make deps'
tool doxygen 'the API pages' 'make deps-dev'

torch=
for python in python3 /usr/bin/python3; do
    if "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null; then
        torch=$python
        break
    fi
done
if [ -n "$torch" ]; then
    echo "TD_PYTHON_TORCH := $torch" >>"$work/config"
    row found python3-torch 'the peer in make bench'
else
    missing python3-torch 'the peer in make bench' 'make deps-bench'
fi

{
    echo "# Written by scripts/detect.sh; make removes and rewrites it as needed."
    cat "$work/config"
    echo "TD_CFLAGS := $(echo $cflags)"
    echo "TD_LIBS := $(echo $libs)"
} >"$work/final"

if ! cmp -s "$work/table" build/found.txt; then
    {
        echo "tandem found on this machine (compiler: $CC):"
        cat "$work/table"
        if [ -s "$work/missing" ]; then
            echo "To get what is missing:"
            cat "$work/missing"
        fi
        echo
    }
    cp "$work/table" build/found.txt
fi
mv "$work/final" "$out"
