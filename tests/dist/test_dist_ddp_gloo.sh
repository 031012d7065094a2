#!/usr/bin/env bash
# What is built on process groups, once more over gloo: the same tests as over shm.
. "$(dirname "$0")/../help/tap.sh"
build=${BUILD:-build/cc}
[ -e "$build/libtandem-gloo.so" ] || skip_all 'DDP over gloo' 'libgloo-dev is not installed'
export TANDEM_BACKEND=gloo
tests="test_dist_ddp test_dist_ddp_modes test_dist_ddp_unused test_dist_ddp_corners test_dist_ddp_resume test_dist_sync_bn"
# Minutes with sanitizers; there these run over shm alone, and what is gloo's own is in the others.
[ -n "${SANITIZE:-}" ] || tests="$tests test_dist_pipeline test_dist_pipeline_files test_dist_leaves test_dist_elastic
    test_dist_shard_faults test_dist_mesh test_dist_layouts"
# These lie above the engines: over shm they are in every run, and gloo's collectives are tested bit for bit in
# test_dist_gloo.sh.
[ -z "${TANDEM_LONG:-}" ] || tests="$tests test_dist_shard test_dist_shard_bytes test_dist_shard_files
    test_dist_shard_defer test_dist_slices"
for test in $tests; do
    works "$test over gloo" "$build/tests/$test"
done
done_testing
