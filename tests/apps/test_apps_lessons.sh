#!/usr/bin/env bash
# Lessons from 18 on: on other numbers of processes, with other options, and what they refuse. What their pages show:
# tests/project/test_tutorial.sh.
. "$(dirname "$0")/../help/tap.sh"
export OMP_NUM_THREADS=1
cp -r --parents data/wine.csv "$work"
cd "$work" || exit 1

# ---- 18: DDP by hand ----

for how in '1' '3 4' '5 1024'; do
    # shellcheck disable=SC2086
    works "ddp_by_hand $how" "$apps/ddp_by_hand" $how
    says 'the bits of td_ddp' '^three ways on [135]: the same bits$'
done
grep -A 100 '^buckets' out | grep -c 'message' >messages
echo 1 >one
same 'all gradients fit into one bucket' one messages
fails 'more processes than it has room for' 64 "PROCESSES: 9 is out of range" "$apps/ddp_by_hand" 9

done_testing
