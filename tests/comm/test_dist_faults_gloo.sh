#!/usr/bin/env bash
# Whatever happens to one rank, the others are told, over gloo, too: the same tests as over shm.
# run: waits
. "$(dirname "$0")/../help/tap.sh"
build=${BUILD:-build/cc}
[ -e "$build/libtandem-gloo.so" ] || skip_all 'faults over gloo' 'libgloo-dev is not installed'
export TANDEM_BACKEND=gloo
for test in test_dist_faults test_dist_refusals; do
    works "$test over gloo" "$build/tests/$test"
done
done_testing
