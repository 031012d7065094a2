#!/bin/sh
# Looks for the libraries and tools that tandem can use, writes them to a file for make, and prints
# what was found, what each piece brings, and how to get what is missing.
#
# usage: CC=cc scripts/detect.sh build/config.cc.mk
#
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
    found_cflags= found_libs=$3
    if command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$2" 2>/dev/null; then
        found_cflags=$(pkg-config --cflags "$2")
        found_libs=$(pkg-config --libs "$2")
    fi
    {
        # cmocka.h wants these four in front.
        printf '#include <stdarg.h>\n#include <stddef.h>\n#include <setjmp.h>\n#include <stdint.h>\n#include <stdio.h>\n'
        printf '#include <%s>\nint main(void) { %s; return 0; }\n' "$4" "$5"
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

brings='folders of pictures'
if library stb no-pkg-config '' stb/stb_image.h '(void)0'; then # the header has all
    use STB
    row found stb "$brings"
else
    missing stb "$brings" 'make deps'
fi

brings='folders of pictures: quicker JPEGs'
if library jpeg libjpeg -ljpeg jpeglib.h 'struct jpeg_error_mgr e; jpeg_std_error(&e)'; then
    use JPEG
    row found libjpeg "$brings"
else
    missing libjpeg "$brings" 'make deps'
fi

brings='make test'
if library cmocka cmocka -lcmocka cmocka.h '(void)cmocka_set_message_output'; then
    echo "TD_HAVE_CMOCKA := 1" >>"$work/config"
    echo "TD_TEST_LIBS := $found_libs" >>"$work/config"
    cflags="$cflags $found_cflags"
    row found cmocka "$brings"
else
    missing cmocka "$brings" 'make deps'
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
cxx=${CXX:-c++}
gloo_flags='-std=c++14 -O2 -g -fPIC -shared -fvisibility=hidden -Wl,-z,defs'
gloo_libs='-lgloo -ldl -pthread'
# shellcheck disable=SC2086
if $cxx $gloo_flags -I. -o "$work/try.so" dist/gloo/shim.cc dist/gloo/backoff.cc $gloo_libs >/dev/null 2>&1; then
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
mpicc=${MPICC:-mpicc}
mpi_flags='-std=c11 -D_GNU_SOURCE -O2 -g -fPIC -shared -fvisibility=hidden'
# shellcheck disable=SC2086
if $mpicc $mpi_flags -I. -o "$work/try.so" dist/mpi/shim.c -pthread >/dev/null 2>&1; then
    {
        echo "TD_HAVE_MPI := 1"
        echo "TD_MPICC := $mpicc"
        echo "TD_MPI_CFLAGS := $mpi_flags"
    } >>"$work/config"
    row found mpi "$brings"
else
    missing mpi "$brings" 'make deps'
fi

tool() { # tool COMMAND BRINGS HOW
    if command -v "$1" >/dev/null 2>&1; then
        row found "$1" "$2"
    else
        missing "$1" "$2" "$3"
    fi
}
tool python3 'some of the tests' 'make deps'
tool slurmctld 'tests in a small Slurm cluster' 'make deps'
tool clang 'make fuzz' 'make deps-dev'
tool clang-format 'make format and lint' 'make deps-dev'
tool clang-tidy 'make lint' 'make deps-dev'
tool gnuplot 'pictures of training curves' 'make deps-dev'
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
