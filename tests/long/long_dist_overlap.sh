#!/usr/bin/env bash
# Two ranks of one core each across a wire of 2 Gbit/s (two network namespaces, a shaped link): DDP
# hides at least 60 % of its communication, and what its figures call exposed is what a step with
# communication takes more than one without. Times of a shared machine: the best of a few tries.
. "$(dirname "$0")/../help/tap.sh"

[ -e "${BUILD:-build/cc}/libtandem-gloo.so" ] || skip_all 'overlap across a wire' 'libgloo-dev is not installed'
command -v ip >/dev/null && command -v tc >/dev/null || skip_all 'overlap across a wire' 'iproute2 is not installed'
[ "$(nproc)" -ge 2 ] || skip_all 'overlap across a wire' 'there is one core'
ip netns add tdprobe$$ 2>/dev/null || skip_all 'overlap across a wire' 'no network namespaces here'
ip netns del tdprobe$$

good() { # the last lines of bench_overlap, in $work/out
    awk '/^hidden/ { sub(/;/, "", $0); hidden = $2; ratio = $NF }
         END { exit !(hidden >= 60 && ratio > 0.85 && ratio < 1.15) }' "$work/out"
}

for try in 1 2 3 4; do
    bench/overlap.sh 256 12 >"$work/out" 2>&1 || break
    echo "# try $try: $(tail -n 1 "$work/out")"
    good && break
done
good
tap $? '60 % of the communication is hidden, and the figures agree with the clock' "$work/out"
done_testing
