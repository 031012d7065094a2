#!/usr/bin/env bash
# docs/adding-an-op.md word for word: its patches, in a copy of the sources, and the tests that it names.
# Only what these tests need and the patches reach is built, without CUDA and with few optimizations.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
[[ ${BUILD:-build/cc} != *-emulated* ]] || skip_all 'adding an operation' 'a build without CUDA has shown it'
command -v git >/dev/null || skip_all 'adding an operation' 'git is not installed'
page=$PWD/docs/adding-an-op.md
build=${BUILD:-build/cc}
compiler=${build#build/} compiler=${compiler%-nocuda}
copied=build/$compiler-nocuda
mkdir -p "$work/tree/$copied"
cp -a Makefile scripts tandem.h tensor autograd tests "$work/tree"
if [[ $compiler != *-* ]]; then # the objects of a plain build: what the patches reach, make finds to be older than they
    cp -a "$build"/{tensor,autograd} "$work/tree/$copied"
    rm -rf "$work/tree/$copied"/tensor/{cuda,backend.o} # these differ without CUDA
    find "$work/tree/$copied" -name '*.d' -exec sed -i "s|^$build/|$copied/|" {} +
fi
cd "$work/tree" || exit 1

awk '/^```/ { inside = $0 == "```diff"; next } inside' "$page" >"$work/patch"
works 'the patches fit' env GIT_CEILING_DIRECTORIES="$work" git apply "$work/patch"
[ "$(grep -c '^+++ ' "$work/patch")" -eq 4 ]
tap $? 'four files are changed'
# A subset of the library; its objects are right for these flags, and what is compiled again needs no optimization.
# What the make around this test was told is not for this one.
unset MAKEFLAGS MFLAGS
subset=(CC="$compiler" CUDA=0 EMULATE= SANITIZE= WERROR= TESTS= OPTIMIZE=-O0 ROOMS='tensor autograd' COMMON=
    HELP_SRC='tests/autograd/ops_cases.c tests/autograd/ops_cases_run.c tests/tensor/reference.c tests/help/expect_fatal.c'
    CFLAGS='-Werror=switch -Werror=implicit-function-declaration')
tests=()
for name in test_ops_gradcheck test_precision_ops test_kernels_elements; do
    tests+=("$copied/tests/$name")
done
works 'it builds' make -j2 --no-print-directory -o "$copied/flags" -o "$copied/flags.own" "${subset[@]}" "${tests[@]}"
for test in "${tests[@]}"; do
    works "${test##*/}" env CMOCKA_MESSAGE_OUTPUT=TAP "$test"
    [ "$test" = "${tests[2]}" ] || says 'log_sigmoid is in it' '^ok .* log_sigmoid$'
done
done_testing
