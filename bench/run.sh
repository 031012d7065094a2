#!/usr/bin/env bash
# make bench: runs the comparison and leaves its table in bench/results/. BUILD is set by make.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-/usr/bin/python3}" bench/run.py "${BUILD:-build/release}" \
    --save "bench/results/${BENCH_NAME:-latest}.md" "$@"
