#!/usr/bin/env bash
# An extension is a folder that can be deleted: without it, and with at most one line changed, the library builds. In
# a copy of the tree with its object files, so what is compiled again is what includes something of the folder.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
build=${BUILD:-build/cc}
shared=$(cd "$build" && ls libtandem.so.* 2>/dev/null)
[[ $build != *-emulated* && -n $shared ]] || skip_all 'deleting folders' 'it takes a shared library, of a plain build'
compiler=${build#build/} compiler=${compiler%-nocuda}
cuda=() && [[ $build != *-nocuda ]] || cuda=(CUDA=0)

# Folders that go together, and the one line that changes then: its file, and how sed changes it.
table='
nn/onnx
nn/models/zoo                 nn/models/registry.c s/^#define ZOO.*/#define ZOO/
data/download
data/images                   tandem.h /^.include.*data.images/d
data/text                     tandem.h /^#include.*data.text/d
dist/comm/engines/p2p/mpi
dist/comm/engines/p2p         dist/comm/registry.c /td_p2p_engine_find/d
dist/shard                    tandem.h /^.include.*dist.shard/d
dist/pipeline
dist/elastic
dist/slices                   tandem.h /^.include.*dist.slices/d
dist/leaves,dist/elastic
dist/sync_bn
dist/dp
dist/trace
dist/comm/engines/sim                           dist/comm/registry.c s/^#define SIM.*/#define SIM NULL/
dist/trace,dist/comm/engines/sim,tensor/observe dist/comm/registry.c s/^#define SIM.*/#define SIM NULL/
dist/graph,tensor/graph
'

# Links where the file system can, but for what a compiler or make overwrites.
copy() { cp -al "$@" 2>/dev/null || cp -a "$@"; }
base=$work/base
mkdir -p "$base/$build" "$base/tests"
copy Makefile scripts tandem.h tensor autograd nn data dist apps examples "$base"
find apps -type l -exec rm "$base/{}" \;
cp -a build/config.*.mk build/cuda-wishes* "$base/build"
copy "$build"/{flags,flags.own,flags.link,sources,lib*,tensor,autograd,nn,data,dist,apps} "$base/$build"
[ ! -d build/nvcc ] || copy build/nvcc "$base/build"
separate() { # separate TREE: gives it files of its own that are written to in their place
    find "$1" \( -name '*.d' -o -path '*/build/*' \( -name 'flags*' -o -name sources \) \) -print0 | xargs -0 sed -i ''
}

# The object files are right for these flags, and what is compiled again needs no optimization.
library() {
    make -j2 --no-print-directory -o "$build/flags" -o "$build/flags.own" -o build/nvcc/flags CC="$compiler" "${cuda[@]}" EMULATE= SANITIZE= WERROR= TESTS= \
        OPTIMIZE=-O0 LDFLAGS=-Wl,-S lib
}
unset MAKEFLAGS MFLAGS
changes_one_line() { # changes_one_line FILE SED
    sed -e "$2" "$1" >changed
    [ "$(diff "$1" changed | grep -c '^<')" -eq 1 ] && mv changed "$1"
}
while read -r folders file change; do
    [ -n "$folders" ] || continue
    cd "$work" && rm -rf tree && copy base tree && separate tree && cd tree || exit 1
    rm -r ${folders//,/ }
    { [ -z "$file" ] || changes_one_line "$file" "$change"; } >"$work/out" 2>&1 && library >>"$work/out" 2>&1
    tap $? "without $folders${file:+, and a line of $file}" "$work/out"
done <<<"$table"
done_testing
