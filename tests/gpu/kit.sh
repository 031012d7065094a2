#!/usr/bin/env bash
# Packs what `make gpu-check` needs on a machine with a GPU, a driver and perhaps nothing else: the programs,
# the libraries that they load, the scripts, and the sources, from which the check is built there if it does
# not start. With TANDEM_DATA, CIFAR-10 too, in pieces for a way on which little fits at a time.
# usage: [BUILD=build/cc-kit] [TANDEM_DATA=DIR] tests/gpu/kit.sh OUT.tar.gz
set -eu
BUILD=${BUILD:-build/cc-kit}
out=${1:?usage: tests/gpu/kit.sh OUT.tar.gz}
kit=$(mktemp -d)
trap 'rm -rf "$kit"' EXIT
mkdir -p "$kit/tandem/lib" "$(dirname "$out")"
git ls-files -- Makefile LICENSE README.md tandem.h tensor autograd nn data dist apps tests scripts docs/gpu-check.md |
    grep -v '^tests/pictures/\|^tests/corpus/' | tar -cf - -T - | tar -xf - -C "$kit/tandem"
for f in tests/gpu/check apps/cifar_resnet18 apps/cifar_speedrun tests/worker_ddp tests/worker_captured; do
    if [ -x "$BUILD/$f" ]; then
        install -D "$BUILD/$f" "$kit/tandem/build/cc/$f"
        strip --strip-debug "$kit/tandem/build/cc/$f"
        ldd "$BUILD/$f" | sed -n 's/.*lib\(cjson\|yaml\|cmocka\)[^ ]* => \([^ ]*\) .*/\2/p'
    fi
done | sort -u | xargs -r cp -L -t "$kit/tandem/lib"
tar -czf "$out" -C "$kit" tandem
echo "$out: $(du -h "$out" | cut -f 1); there: tar xzf $(basename "$out") && cd tandem && bash tests/gpu/check.sh"
batches=${TANDEM_DATA:-}/cifar-10-batches-bin
if [ -d "$batches" ]; then
    rm -f "$out".data.*
    tar -czf - -C "$TANDEM_DATA" cifar-10-batches-bin | split -b 48M - "$out.data."
    echo "$(ls "$out".data.*): there: cat $(basename "$out").data.* | tar xzf - && export TANDEM_DATA=\$PWD"
fi
