#!/usr/bin/env bash
# Whatever happens to one rank, the others are told, over gloo, too: the same tests as over shm.
# run: waits
. "$(dirname "$0")/tap.sh"
build=${BUILD:-build/cc}
if [ ! -e "$build/libtandem-gloo.so" ]; then
    echo 1..1
    echo 'not ok 1 - faults over gloo # SKIP libgloo-dev is not installed'
    exit 0
fi
export TANDEM_BACKEND=gloo
for test in test_dist_faults test_dist_refusals; do
    works "$test over gloo" "$build/tests/$test"
done
done_testing
