#!/bin/sh
# Runs clang-format over the project's C, C++ and CUDA files: -i puts them into the format, --check
# complains.
set -eu
case ${1:-} in
-i) options='-i' ;;
--check) options='--dry-run -Werror' ;;
*)
    echo 'usage: scripts/format.sh -i | --check' >&2
    exit 2
    ;;
esac
# shellcheck disable=SC2086
find apps autograd bench data dist examples nn tensor tests tandem.h \
    -name '*.[ch]' -o -name '*.inc' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' |
    sort | xargs clang-format $options
