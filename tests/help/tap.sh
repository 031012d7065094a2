# Sourced by the test scripts: TAP lines, and a few kinds of checks. Not a test itself.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
apps=$PWD/${BUILD:-build/cc}/apps ports=$PWD/build/ports
export LC_ALL=C # decimal points, and the order of names
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tap_number=0 tap_failures=0

# A run with sanitizers takes longer; so do fewer threads than CPUs.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
# A run of ResNet-18 touches some 400 MiB for the first time: in large pages, where malloc can ask for them.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
# Open MPI: root may start jobs (in a container); version 5 would not connect two addresses of one host.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_reachable=weighted

tap() { # tap RC NAME [OUTPUT-FILE]: one test's line; the file is shown if it failed
    tap_number=$((tap_number + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $tap_number - $2"
    else
        echo "not ok $tap_number - $2"
        tap_failures=$((tap_failures + 1))
        if [ -n "${3:-}" ]; then
            tail -n 60 "$3" | sed 's/^/# /'
        fi
    fi
}

skip_all() { # skip_all NAME REASON: ends the script
    echo 1..1
    echo "not ok 1 - $1 # SKIP $2"
    exit 0
}

terminal="python3 $PWD/tests/help/on_terminal.py"
no_terminal() { # whether this machine gives none, as a container without /dev/pts; says why
    python3 -c 'import os; os.openpty()' 2>"$work/err" && return 1
    echo "# skipped: no terminal can be opened here ($(tail -n 1 "$work/err")): mount /dev/pts"
}

needs_cifar() { # the test is skipped where there are no real images
    if [ -z "${TANDEM_DATA:-}" ]; then
        skip_all "${0##*/}" 'no CIFAR-10: TANDEM_DATA is not set'
    fi
}

few_images() { # the first of CIFAR-10, where it is: --limit uses no others, and every process reads whole files
    local file
    [ -n "${TANDEM_DATA:-}" ] || return
    mkdir "$work/few"
    for file in "$TANDEM_DATA"/{,cifar-10-batches-bin/}*_batch*.bin; do
        [ ! -e "$file" ] || head -c $((3073 * 512)) "$file" >"$work/few/${file##*/}"
    done
    export TANDEM_DATA=$work/few
}

shortened() { # whether only make test-long runs all: with sanitizers, which make computing ten times as slow
    [ -n "${SANITIZE:-}" ] && [ -z "${TANDEM_LONG:-}" ]
}

works() { # works NAME COMMAND...: it ends with 0; its output goes to $work/out
    local name=$1
    shift
    "$@" >"$work/out" 2>&1 </dev/null
    tap $? "$name" "$work/out"
}

fails() { # fails NAME CODE PATTERN COMMAND...: it ends with CODE and says PATTERN on stderr
    local name=$1 code=$2 pattern=$3 rc
    shift 3
    "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    cat "$work/err" >>"$work/out"
    echo "# code $rc, wanted $code; wanted on stderr: $pattern" >>"$work/out"
    [ $rc -eq "$code" ] && grep -qE -- "$pattern" "$work/err"
    tap $? "$name" "$work/out"
}

says() { # says NAME PATTERN: the output of the last command has a line like that
    grep -qE -- "$2" "$work/out"
    tap $? "$1" "$work/out"
}

same() { # same NAME FILE FILE
    cmp "$2" "$3" >"$work/cmp" 2>&1
    tap $? "$1" "$work/cmp"
}

two_ranks() { # two_ranks PROGRAM DEVICE DEVICE MODE: that meet in a file of $work; fails if one does
    local pids=() rc=0 r
    rm -f "$work/meet"
    for r in 0 1; do
        MEET=file://$work/meet RANK=$r WORLD_SIZE=2 timeout 120 "$1" "${@:2+r:1}" "$4" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || rc=1
    done
    return $rc
}

free_port() { # a port that nobody listens at, that no connection is given, and that no other script of this tree has
    local port owner i
    mkdir -p "$ports"
    for ((i = 0; i < 1000; i++)); do
        port=$((20000 + RANDOM % 10000))
        owner=$(readlink "$ports/$port") && ! kill -0 "$owner" 2>/dev/null && rm -f "$ports/$port"
        ln -s $$ "$ports/$port" 2>/dev/null || continue
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    [ $i -lt 1000 ] && echo "$port" || echo "no port is free, or $ports cannot be written" >&2
}

together() { # together NAME COMMAND COMMAND: both at once, in shells; both end with 0; in $work
    local one two
    sh -c "$2" >"$work/out.one" 2>&1 </dev/null &
    sh -c "$3" >"$work/out.two" 2>&1 </dev/null
    two=$?
    wait $!
    one=$?
    cat "$work/out.one" "$work/out.two" >"$work/out"
    tap $((one != 0 || two != 0)) "$1" "$work/out"
}

await() { # await COMMAND...: until it succeeds; 60 s at most
    local i
    for ((i = 0; i < 6000; i++)); do
        "$@" 2>/dev/null && return 0
        sleep 0.01
    done
    return 1
}

await_line() { await grep -aqsE -- "$@"; } # await_line PATTERN FILE...: a file has such a line

done_testing() {
    echo "1..$tap_number"
    exit $((tap_failures > 0))
}
