#!/bin/sh
# Format, then cppcheck over the project's own C files.
# usage: scripts/lint.sh [COMPILER FLAGS...]
set -eu
scripts/format.sh --check
echo 'ok    format'
