#!/usr/bin/env bash
# make bench: runs the comparison and leaves its tables and picture in bench/results/. make sets BUILD,
# PYTHON (one that has PyTorch), NEWEST (one with a newer PyTorch, if make deps-bench-newest was run)
# and ONLY (make bench BENCH="resnet18 b32, wine": jobs with all words of one of these).
set -euo pipefail
cd "$(dirname "$0")/.."
name=${BENCH_NAME:-latest}
command -v "${PYTHON:-/usr/bin/python3}" >/dev/null || { echo 'make bench: Python 3 runs it: make deps-bench' >&2; exit 1; }
exec "${PYTHON:-/usr/bin/python3}" bench/run.py "${BUILD:-build/cc}" --python "${PYTHON:-}" \
    --newest "${NEWEST:-}" --only "${ONLY:-}" --save "bench/results/$name.md" "$@"
