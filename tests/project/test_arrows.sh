#!/usr/bin/env bash
# The arrows between the rooms point only downwards, and in a room from its subfolders to its root: who
# includes whom, read from the sources. Calls point the same way, and not in circles: who calls whom, read
# from the object files. (With sanitizers nothing is left out of a program.)
# run: plain
set -u
cd "$(dirname "$0")/../.." || exit 1

# Which rooms a room may include. tensor/cpu/ is seen by tensor/ alone (through kernels.h).
allowed() {
    case $1 in
    tensor) echo 'tensor' ;;
    autograd) echo 'autograd tensor' ;;
    nn) echo 'nn autograd tensor' ;;
    data) echo 'data tensor' ;;
    dist/comm) echo 'dist/comm tensor' ;;
    dist) echo 'dist nn autograd data tensor' ;;
    apps/library) echo 'apps/library tensor' ;;
    apps) echo 'apps tandem.h dist nn autograd data tensor' ;;
    esac
}

number=0 failures=0
check() { # check NAME OFFENDERS
    number=$((number + 1))
    if [ -z "$2" ]; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        printf '%s\n' "$2" | sed 's/^/# /'
        failures=$((failures + 1))
    fi
}

# "file:line: room included/path" of every include of a project file, whatever its spelling.
includes() { # includes FOLDER...
    grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' --include='*.[ch]' --include='*.inc' \
        --include='*.def' --include='*.cu' "$@" 2>/dev/null |
        sed -E 's/^([^:]+:[0-9]+):[^"<]*["<]([^">]+)[">].*/\1 \2/' |
        while read -r at path; do
            # A project file is one that exists in the tree: from the root, or beside the includer. What make
            # writes into build/ comes from files of the room that includes it.
            beside=${at%/*}/$path
            if [[ $path == build/* ]]; then
                :
            elif [ -e "$path" ]; then
                echo "$at $path"
            elif [ -e "$beside" ]; then
                echo "$at $(realpath --relative-to=. "$beside")"
            fi
        done
}

# Root files that know what is in subfolders by their task: the tables of what can be chosen.
registries='tensor/backend.c data/registry.c dist/comm/registry.c'

all=$(includes tensor autograd nn data dist apps tandem.h)
of() { # of ROOM...: its lines
    local IFS='|'
    grep -E "^($*)[/:]" <<<"$all"
}

echo 1..18
for room in tensor autograd nn data dist/comm dist apps/library apps; do
    offenders=$(of "$room" | while read -r at path; do
        found=no
        for below in $(allowed "$room"); do
            [[ $path == "$below" || $path == "$below"/* ]] && found=yes
        done
        [ $found = no ] && echo "$at includes $path"
    done)
    check "$room includes only: $(allowed "$room")" "$offenders"
done

offenders=$(of autograd nn data dist apps tandem.h | grep -E ' tensor/(cpu|cuda)/')
check 'only tensor/ includes tensor/cpu/' "$offenders"

found=$(of tensor autograd nn data dist | while read -r at path; do
    from=${at%%:*}
    # dist/comm/ is a room of its own, below dist/. What devices and the operating system promise is for all rooms.
    path=${path/tensor\/kernels/tensor} path=${path/tensor\/system/tensor}
    [[ ${from/dist\/comm/comm} != */*/* && ${path/dist\/comm/comm} == */*/* &&
        " $registries " != *" $from "* ]] && echo "$from $path"
done | sort -u)
check "a room's root includes no header of a subfolder" "$found"

# A scan that finds nothing would pass everything.
count=$(of autograd nn | wc -l)
check 'the scan sees includes' "$([ "$count" -ge 10 ] || echo "only $count found")"

# Who calls whom, of the object files: calls.py has what is known, with the reasons.
build=${BUILD:-build/cc}
calls() { # calls FOLDER: "KIND SYMBOL" of each symbol of the object files whose sources are there
    for source in "$1"/*.c; do
        object=$build/${source%.c}.o
        [ -e "$object" ] && nm "$object" | awk '{ print $(NF - 1), $NF }'
    done
}
if [ -e "$build/tensor/tensor.o" ] && command -v nm >/dev/null; then
    check 'the scan of calls sees circles' "$(python3 tests/project/calls.py - selftest 2>&1)"
    check 'a room calls only what it may include' "$(python3 tests/project/calls.py "$build" rooms 2>&1)"
    check "a room's root calls its subfolders only where it opens them" "$(python3 tests/project/calls.py "$build" roots 2>&1)"
    check 'no circles of more than two files in a room' "$(python3 tests/project/calls.py "$build" circles 2>&1)"
    check 'the known calls are there' "$(python3 tests/project/calls.py "$build" stale 2>&1)"
else
    for number in 11 12 13 14 15; do
        echo "ok $number - calls # SKIP there are no object files in $build"
    done
fi

# The first lesson trains in one process: td_evaluate asks what surrounds a module, and names no strategy.
lesson=$build/apps/wine_single
if [ -e "$lesson" ] && command -v nm >/dev/null; then
    strategies=$(for folder in dist/ddp dist/ddp/extra dist/shard dist/slices dist/leaves dist/elastic dist/pipeline dist/dp dist/sync_bn; do calls $folder; done |
        awk '$1 ~ /^[A-Z]$/ && $1 != "U" { print $2 }' | sort -u)
    linked=$(nm "$lesson" | awk '$2 ~ /^[A-Z]$/ && $2 != "U" { print $3 }' | sort -u)
    [ "$(wc -l <<<"$strategies")" -ge 50 ] || strategies=$linked
    check 'lesson 1 links no strategy of dist/' "$(comm -12 <(echo "$strategies") <(echo "$linked"))"
else
    echo "ok 17 - lesson 1 links no strategy of dist/ # SKIP there is no $lesson"
fi

# Optimizers, clipping and checkpoints ask nn/params.h, which knows only that a rank may have a window.
if [ -e "$build/nn/shared/windows.o" ] && command -v nm >/dev/null; then
    shared=$(calls nn/shared | awk '$1 ~ /^[A-Z]$/ && $1 != "U" { print $2 }')
    found=$(for folder in nn nn/optim nn/io nn/extra nn/models nn/onnx; do calls $folder; done |
        awk '$1 == "U" { print $2 }' | sort -u | grep -xF "${shared:-none}")
    check 'nn builds without nn/shared' "${found:-$([ -n "$shared" ] || echo 'the scan saw no symbols')}"
else
    echo "ok 18 - nn builds without nn/shared # SKIP there are no object files in $build"
fi
[ $failures -eq 0 ]
