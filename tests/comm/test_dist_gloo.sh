#!/usr/bin/env bash
# Every collective over gloo against a serial computation, bit for bit: the tests of the collectives
# with another backend.
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build/cc}
if [ ! -e "$build/libtandem-gloo.so" ]; then
    echo 1..1
    echo 'not ok 1 - collectives over gloo # SKIP libgloo-dev is not installed'
    exit 0
fi
TANDEM_BACKEND=gloo CMOCKA_MESSAGE_OUTPUT=TAP exec "$build/tests/test_dist_collectives"
