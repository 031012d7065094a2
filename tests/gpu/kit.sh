#!/usr/bin/env bash
# Packs what `make gpu-check` needs on a machine with a GPU: the built programs, the scripts, and the
# sources, from which it builds there if the programs do not start.
# usage: [BUILD=build/cc] tests/gpu/kit.sh OUT.tar.gz
set -eu
BUILD=${BUILD:-build/cc}
out=${1:?usage: tests/gpu/kit.sh OUT.tar.gz}
list=$(mktemp)
trap 'rm -f "$list"' EXIT
git ls-files -- Makefile LICENSE README.md tandem.h tensor autograd nn data dist apps tests scripts bench docs/gpu-check.md |
    grep -v '^tests/pictures/\|^tests/corpus/\|^bench/results/' >"$list"
for f in "$BUILD"/tests/gpu/check "$BUILD"/apps/cifar_resnet18 "$BUILD"/apps/cifar_speedrun \
    "$BUILD"/tests/worker_ddp "$BUILD"/tests/worker_captured; do
    [ ! -x "$f" ] || echo "$f" >>"$list"
done
mkdir -p "$(dirname "$out")"
tar -czf "$out" --transform 's|^|tandem/|' -T "$list"
echo "$out: $(du -h "$out" | cut -f 1); there: tar xzf $(basename "$out") && cd tandem && bash tests/gpu/check.sh"
