#!/usr/bin/env bash
# tdrun: environment, restarts, reports, signals, logs, several nodes; no process may be left behind.
# run: waits
. "$(dirname "$0")/../help/tap.sh"
unset OMP_NUM_THREADS RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
worker=$PWD/${BUILD:-build/cc}/tests/worker_launch
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:handle_segv=0" TMPDIR="$work/tmp"
mkdir "$TMPDIR"
set -m # each launcher in the background has the usual signals and a process group of its own
trap 'kill -KILL $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT

tdrun() { "$apps/tdrun" "$@"; }

wait_for() { # wait_for FILE...: until all are there, 60 s at most
    local i file
    for file; do
        for ((i = 0; i < 6000; i++)); do
            [ -e "$file" ] && break
            sleep 0.01
        done
        [ -e "$file" ] || return 1
    done
}

all_gone() { # all_gone FILE...: none of the processes whose pids these hold runs, within 30 s
    local end=$((SECONDS + 30)) left file # less than a child of a worker sleeps
    while [ $SECONDS -lt $end ]; do
        left=0
        for file; do
            [ -s "$file" ] || continue # whose worker was killed before it wrote its pid
            case $(sed 's/.*) //; s/ .*//' "/proc/$(cat "$file")/stat" 2>/dev/null) in
            '' | Z | X) ;;
            *) left=1 ;;
            esac
        done
        [ $left -eq 0 ] && return 0
        sleep 0.01
    done
    echo "# still there: $(for file; do cat "$file"; done)"
    return 1
}

code_is() { # code_is NAME WANTED CODE FILE
    echo "# code $3, wanted $2" >>"$4"
    [ "$3" -eq "$2" ]
    tap $? "$1" "$4"
}

file_says() { # file_says NAME FILE PATTERN
    grep -qE -- "$3" "$2"
    tap $? "$1" "$2"
}

notes() { mkdir "$work/$1" && echo "$work/$1"; } # a new folder for notes

# ---- one node ----

works 'four workers' tdrun --nproc-per-node 4 --max-restarts 5 --rdzv-id job "$worker" env meet
for r in 0 1 2 3; do
    says "environment of rank $r" "^env RANK=$r LOCAL_RANK=$r GROUP_RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 GROUP_WORLD_SIZE=1 TANDEM_RESTART_COUNT=0 TANDEM_MAX_RESTARTS=5 TANDEM_ATTEMPT=0 OMP_NUM_THREADS=[0-9]+ MASTER_ADDR=127.0.0.1 TANDEM_RUN_ID=job\$"
    says "rank $r met the others" "^met rank=$r world=4 local=$r/4 sum=6 attempt=0"
done
OMP_NUM_THREADS=7 tdrun "$worker" env >"$work/out" 2>&1
says 'a number of threads that is set stays' 'OMP_NUM_THREADS=7 '
[ -z "$(ls "$TMPDIR")" ]
tap $? 'no temporary folder is left'
works "torchrun's spellings" tdrun --nnodes=1 --nproc_per_node=2 --node_rank=0 \
    --master_port="$(free_port)" --max_restarts=0 --rdzv_id=spelled "$worker" env meet
fails "--master_addr is torchrun's, too" 64 'several nodes need --master-addr and --node-rank' \
    tdrun --nnodes=2 --master_addr=127.0.0.1 "$worker"
for line in '--standalone --nproc_per_node=2 --rdzv_backend=c10d' \
    '--nnodes=1 --nproc_per_node=2 --rdzv_id=7 --rdzv_backend=c10d --rdzv_endpoint=localhost:0' \
    '--standalone --nnodes=1:1 --nproc-per-node=2 --rdzv-endpoint=elsewhere:29400 --max-restarts=3' \
    '--nproc_per_node 2 --rdzv-backend static --rdzv_conf join_timeout=60,timeout=60 --no_python --use_env' \
    '--nproc-per-node=2 --signals-to-handle=SIGTERM,SIGUSR1 -r 0:0 -t 0 --monitor_interval=0.1'; do
    # shellcheck disable=SC2086
    works "torchrun's line: $line" tdrun $line "$worker" meet
    says 'the ranks meet' '^met rank=1 world=2 '
done
fails 'a port that only this node knows' 64 'a port that all know' \
    tdrun --nnodes=1:2 --rdzv_endpoint=localhost:0 "$worker"
fails 'another backend' 64 "there is no 'etcd-v2' here, only c10d: leave it out" tdrun --rdzv_backend=etcd-v2 "$worker"
fails 'a key that means nothing' 64 "'read_timeout' means nothing here: leave it out" tdrun --rdzv-conf read_timeout=5 "$worker"
fails 'a key without a value' 64 'is not KEY=VALUE' tdrun --rdzv-conf join_timeout "$worker"
fails 'a signal that is not passed on' 64 'SIGKILL.*are passed on' tdrun --signals-to-handle SIGTERM,SIGKILL "$worker"
while read -r line; do
    # shellcheck disable=SC2086
    fails "torchrun's $line" 64 'is torchrun.s and means nothing here: (leave it out|use --|give the program)' tdrun $line "$worker"
done <<'END'
-m
--module
--run_path
--start-method=spawn
--start_method spawn
--role trainer
--local-addr 10.0.0.1
--local_addr=10.0.0.1
--logs_specs default
--event_log_handler console
--numa-binding=node
--duplicate-stdout-filters x
--duplicate_stderr_filters x
--virtual_local_rank
END
works '--standalone, one worker for each CPU' tdrun --standalone --nproc-per-node cpu "$worker" env
[ "$(grep -c "^env RANK=.* LOCAL_WORLD_SIZE=$(nproc) " "$work/out")" -eq "$(nproc)" ]
tap $? 'as many as this process may run on' "$work/out"
cpu=$(taskset -pc $$ | sed 's/.*[ ,-]//')
works '--nproc-per-node auto, on one CPU and no GPU' env CUDA_VISIBLE_DEVICES= taskset -c "$cpu" \
    "$apps/tdrun" --nproc-per-node auto --monitor-interval 0.01 "$worker" env
says 'is one worker' '^env RANK=0 .* WORLD_SIZE=1 '

dir=$(notes budget)
fails 'a worker that fails always' 3 'rank 1 failed first: exit code 3' \
    tdrun --nproc-per-node 2 --max-restarts 2 "$worker" "note:$dir" fail:1:3:99 sleep:60
says 'its own message' '^tdrun:   \| the data of this rank are broken$'
says 'host, rank and pid' '^tdrun:   host .*, node 0, local rank 1, pid [0-9]+, attempt 2$'
[ "$(ls "$dir" | grep -c '^1\.')" -eq 3 ]
tap $? 'it was started exactly three times'
all_gone "$dir"/*
tap $? 'no worker is left'

for backend in shm gloo; do
    [ $backend = shm ] || [ -e "${BUILD:-build/cc}/libtandem-gloo.so" ] || continue
    fails "a worker that ends well too early, $backend" 1 'tdrun:   \| rank 1 had ended before \(exit code 0\) ' \
        env TANDEM_BACKEND=$backend "$apps/tdrun" --nproc-per-node 3 "$worker" early:1
    says 'the engine names it, too' '^tdrun:   \| rank 1 \(pid [0-9]+.*\) (has died, or has ended|has left)'
done

works 'a worker that fails twice' tdrun --nproc-per-node 2 --max-restarts 2 "$worker" fail:1:3:2 meet
says 'the third attempt meets, without old keys' '^met rank=0 world=2 local=0/2 sum=1 attempt=2'

fails 'a segmentation fault' 139 'rank 0 failed first: signal 11 \(SIGSEGV\)' \
    tdrun --nproc-per-node 2 "$worker" signal:0:11 sleep:60
fails 'a fatal error' 134 'a tensor of shape \[2, 3\]' tdrun --nproc-per-node 2 "$worker" fatal:1 sleep:60
says 'ends with SIGABRT' 'rank 1 failed first: signal 6 \(SIGABRT\)'
dir=$(notes killed)
# shellcheck disable=SC2016
fails 'a killed rank that ends after its survivor' 137 'rank 1 failed first: signal 9 \(SIGKILL\)' \
    tdrun --nproc-per-node 2 sh -c 'cd "$0" && echo $$ >pid.$RANK.new && mv pid.$RANK.new pid.$RANK
        until [ -e pid.$((1 - RANK)) ]; do sleep 0.01; done
        if [ $RANK = 1 ]; then until [ -e told ]; do sleep 0.01; done; sleep 0.2; kill -KILL $$; fi
        echo "rank 1 (pid $(cat pid.1)) has died" >"$TANDEM_ERROR_FILE"; touch told; exit 1' "$dir"
fails 'no such program' 127 'cannot start ./nowhere: no such program' tdrun ./nowhere
touch "$work/train.py" "$work/prog.c"
fails 'a script without python3' 127 'cannot start .*/train\.py: not executable: give python3 in front of it' tdrun "$work/train.py"
fails 'C source' 127 'cannot start .*/prog\.c: C source: compile it' tdrun "$work/prog.c"
fails 'a folder' 127 'cannot start .*: a folder; name the program in it' tdrun "$work"
fails 'nor on PATH' 127 'cannot start nowhere: no such program on PATH \(in this folder: ./NAME\)' tdrun nowhere
begin=$SECONDS
fails 'workers that ignore SIGTERM' 7 'rank 1 failed' tdrun --nproc-per-node 2 --grace 0.5 \
    sh -c 'if [ $RANK = 1 ]; then sleep 0.3; exit 7; fi; trap "" TERM; sleep 60; sleep 60'
[ $((SECONDS - begin)) -lt 40 ]
tap $? 'are killed after the grace period'

# ---- the mesh ----

works 'a mesh says how many workers there are' tdrun --mesh tp=2,dp=2 sh -c 'echo "mesh $TANDEM_MESH $WORLD_SIZE"'
[ "$(grep -c '^mesh tp=2,dp=2 4$' "$work/out")" -eq 4 ]
tap $? 'all of them read it' "$work/out"
works 'what is left' tdrun --nproc-per-node 2 --mesh 'rep=2,dp=*' "$worker" meet
fails 'a mesh that does not fit' 64 "--mesh: the mesh 'dp=3' is for 3 ranks, not for 2" \
    tdrun --nproc-per-node 2 --mesh dp=3 "$worker"
fails 'nor with what is left' 64 "'rep=2,dp=\*' does not fit 3 ranks: 3 is no multiple of 2" \
    tdrun --nproc-per-node 3 --mesh 'rep=2,dp=*' "$worker"
fails 'a mesh that is none' 64 "--mesh: the mesh 'dp': 'dp' is not DIMENSION=SIZE" tdrun --mesh dp "$worker"
fails 'that no two nodes can share' 64 'dp=3: 3 processes are not equally many, at most 1024, on each of 2 nodes' \
    tdrun --nnodes 2 --mesh dp=3 "$worker"
fails 'of a number of nodes that is not fixed' 64 'where nodes come and go, one size must be \*' \
    tdrun --nnodes 1:2 --mesh dp=2 "$worker"

# ---- usage ----

fails 'no program' 64 'give at least one program: PROGRAM' tdrun
fails 'a bad count' 64 "nproc-per-node: 0 is out of range" tdrun --nproc-per-node 0 "$worker"
fails 'a range that goes down' 64 'goes down' tdrun --nnodes 3:2 "$worker"
fails '--standalone with several nodes' 64 'is for one node' tdrun --standalone --nnodes 2 "$worker"
fails 'a look that takes no time' 64 "monitor-interval: 0 is out of range" tdrun --monitor-interval 0 "$worker"
if [ ! -d /proc/driver/nvidia/gpus ]; then
    fails 'one worker for each GPU, and none' 64 'no NVIDIA GPU' tdrun --nproc-per-node gpu "$worker"
fi
two_gpus() { # two_gpus COMMAND...: where the driver shows two
    unshare -rm bash -c 'mount -t tmpfs none /proc/driver && mkdir -p /proc/driver/nvidia/gpus/{0,1} && "$@"' two_gpus "$@"
}
if two_gpus true 2>/dev/null; then
    works 'one worker for each GPU' two_gpus env -u CUDA_VISIBLE_DEVICES "$apps/tdrun" --nproc-per-node gpu "$worker" env
    says 'is two workers' '^env RANK=0 .* WORLD_SIZE=2 '
    for visible in 0 1, GPU-8e3f 0,-1,1; do
        works "one worker for each GPU, CUDA_VISIBLE_DEVICES is $visible" two_gpus \
            env "CUDA_VISIBLE_DEVICES=$visible" "$apps/tdrun" --nproc-per-node gpu "$worker" env
        says 'is one worker' '^env RANK=0 .* WORLD_SIZE=1 '
    done
    for visible in '' -1 NoDevFiles 2; do
        fails "none is left by '$visible'" 64 'no NVIDIA GPU' two_gpus \
            env "CUDA_VISIBLE_DEVICES=$visible" "$apps/tdrun" --nproc-per-node gpu "$worker"
    done
else
    tap 0 'no mount namespaces here: how GPUs are counted is not tested # SKIP'
fi
fails 'several nodes without a place' 64 'need --master-addr and --node-rank, or --rdzv-endpoint' \
    tdrun --nnodes 2 "$worker"
fails 'a node rank too many' 64 'ranks go from 0 to 1' \
    tdrun --nnodes 2 --node-rank 2 --master-addr 127.0.0.1 "$worker"
fails 'a log folder that cannot be' 1 '/proc/nowhere' tdrun --log-dir /proc/nowhere "$worker"
port=$(free_port)
"$apps/tdrun" --master-port "$port" "$worker" "note:$(notes busy)" sleep:60 >/dev/null 2>&1 &
holder=$!
wait_for "$work/busy/0.0"
fails 'a busy port' 1 "port $port is busy: pid $holder \(tdrun\)" tdrun --master-port "$port" "$worker"
kill "$holder"
wait "$holder"

# ---- signals ----

for signal in TERM INT HUP QUIT KILL; do
    dir=$(notes "signal$signal")
    "$apps/tdrun" --nproc-per-node 2 "$worker" "note:$dir" "child:$dir" sleep:60 >"$work/out" 2>&1 &
    launcher=$!
    wait_for "$dir/0.0" "$dir/1.0" "$dir/child.0" "$dir/child.1"
    kill -"$signal" "$launcher"
    wait "$launcher" 2>/dev/null
    code=$?
    code_is "SIG$signal: the code" $((128 + $(kill -l "$signal"))) $code "$work/out"
    all_gone "$dir"/*
    tap $? "SIG$signal leaves no process, of the workers' own neither"
done
for _ in $(seq 100); do
    [ -z "$(ls "$TMPDIR")" ] && break
    sleep 0.05
done
[ -z "$(ls "$TMPDIR")" ]
tap $? 'nor a temporary folder'

# ---- the launcher's own streams and helpers ----

dir=$(notes guard)
"$apps/tdrun" --nproc-per-node 2 "$worker" "note:$dir" "child:$dir" "until:$dir/go" >"$work/out" 2>&1 &
launcher=$!
wait_for "$dir/0.0" "$dir/1.0"
for pid in $(pgrep -P $launcher); do # the guard is the child that is no worker
    grep -qx "$pid" "$dir/0.0" "$dir/1.0" || kill -KILL "$pid"
done
wait_for "$dir/child.0" "$dir/child.1"
began=$SECONDS
touch "$dir/go"
wait "$launcher"
code_is 'a killed guard does not end the job' 0 $? "$work/out"
[ $((SECONDS - began)) -lt 5 ]
tap $? 'and what workers have left is not waited for' "$work/out"

dir=$(notes closed)
tdrun --nproc-per-node 2 "$worker" "note:$dir" meet <&- >&- 2>&-
code_is 'closed streams: the job ends well' 0 $? "$work/out"
[ -s "$dir/0.0" ] && [ -s "$dir/1.0" ]
tap $? 'closed streams: all workers ran'

# A worker's daemon, in a session of its own: the job's end is its end, too.
for code in 0 3; do
    dir=$(notes "daemon$code")
    # shellcheck disable=SC2016
    tdrun sh -c 'cd "$0" && (setsid sh -c "echo \$\$ >new && mv new daemon && exec sleep 60" &)
        until [ -e daemon ]; do sleep 0.01; done; exit $1' "$dir" $code >"$work/out" 2>&1
    code_is "a worker with a daemon: code $code" $code $? "$work/out"
    ! kill -0 "$(cat "$dir/daemon")" 2>/dev/null
    tap $? "a worker with a daemon: it is gone (code $code)"
    kill "$(cat "$dir/daemon")" 2>/dev/null
done

# ---- output ----

log=$work/log
dir=$(notes logs)
tdrun --nproc-per-node 2 --log-dir "$log/deep" --rdzv-id one "$worker" env "note:$dir" "until:$dir/0.0" \
    fail:1:3:1 sleep:60 >"$work/out" 2>"$work/err"
cat "$work/err" >>"$work/out"
says '--log-dir: rank 0 shows with its number' '^\[0\] env RANK=0 '
! grep -qE 'RANK=1|noise' "$work/out"
tap $? '--log-dir: the others do not' "$work/out"
says '--log-dir: the report says where' "its output: $log/deep/one/attempt_0/1\$"
grep -q '^env RANK=1 ' "$log/deep/one/attempt_0/1/stdout" &&
    grep -q '^env RANK=0 ' "$log/deep/one/attempt_0/0/stdout" &&
    grep -q '^noise of rank 1$' "$log/deep/one/attempt_0/1/stderr" &&
    grep -q '^the data of this rank are broken$' "$log/deep/one/attempt_0/1/error"
tap $? '--log-dir: the files'
tdrun --nproc-per-node 2 --log-dir "$log" --rdzv-id two --tee 3 "$worker" env >"$work/out" 2>&1
says '--tee 3: rank 1 shows' '^\[1\] env RANK=1 '
tdrun --nproc-per-node 2 --log-dir "$log" --rdzv-id three --redirects 1:1 "$worker" env >"$work/out" 2>&1
grep -q '^env RANK=0 ' "$work/out" && ! grep -q 'RANK=1 ' "$work/out" &&
    grep -q '^env RANK=1 ' "$log/three/attempt_0/1/stdout" && [ ! -e "$log/three/attempt_0/1/stderr" ]
tap $? '--redirects 1:1: one stream of one rank' "$work/out"
tdrun --nproc-per-node 3 --local-ranks-filter 0,2 "$worker" env >"$work/out" 2>&1
grep -q '^env RANK=0 ' "$work/out" && ! grep -q ' RANK=1 ' "$work/out" && grep -q '^env RANK=2 ' "$work/out"
tap $? '--local-ranks-filter' "$work/out"
tdrun --log-dir "$log" --rdzv-id four --tee 1 sh -c 'seq 20000; printf end' >"$work/out" 2>&1
[ "$(grep -c '^\[0\] ' "$work/out")" -eq 20001 ] && [ "$(tail -n 1 "$work/out")" = '[0] end' ] &&
    [ "$(wc -l <"$log/four/attempt_0/0/stdout")" -eq 20000 ]
tap $? '--tee: every line, a last one without its end too'
tdrun --nproc-per-node 3 --log-dir "$log" --rdzv-id wide --tee 1 bash -c \
    'printf -v line "%4095s"; for i in {1..200}; do echo "${line// /$RANK}"; done' | (sleep 1; dd bs=1000 status=none) >"$work/wide"
[ "$(wc -l <"$work/wide")" -ge 600 ] && ! grep -qvE '^\[0\] 0+$|^\[1\] 1+$|^\[2\] 2+$' "$work/wide"
tap $? '--tee: long lines of several ranks do not mix'
fails 'the last lines of stderr where there is no message' 5 'the reason is written here' \
    tdrun --log-dir "$log" --rdzv-id five --redirects 3 sh -c 'echo the reason is written here >&2; exit 5'

# ---- two launchers as two nodes ----

node() { # node RANK NAME ARGUMENTS...: in the background; output in $work/NAME, pid in $pid
    local rank=$1 name=$2
    shift 2
    rm -f "$work/$name" # lines of a job before are not this one's
    "$apps/tdrun" --nnodes 2 --node-rank "$rank" --master-addr 127.0.0.1 --master-port "$port" \
        "$@" >"$work/$name" 2>&1 &
    pid=$!
}

port=$(free_port)
node 1 second --nproc-per-node 1 "$worker" env meet # the host comes later
second=$pid
sleep 0.2
node 0 first --nproc-per-node 2 "$worker" env meet
wait "$pid"
code_is 'two nodes: node 0' 0 $? "$work/first"
wait "$second"
code_is 'two nodes: node 1' 0 $? "$work/second"
file_says 'two nodes: ranks on node 0' "$work/first" '^env RANK=1 LOCAL_RANK=1 GROUP_RANK=0 WORLD_SIZE=3 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=2 '
file_says 'two nodes: ranks on node 1' "$work/second" '^env RANK=2 LOCAL_RANK=0 GROUP_RANK=1 WORLD_SIZE=3 LOCAL_WORLD_SIZE=1 GROUP_WORLD_SIZE=2 '
file_says 'two nodes: they meet' "$work/second" '^met rank=2 world=3 local=0/1 sum=3 '

port=$(free_port)
node 0 first "$worker" env meet # the host comes first, and says for whom it waits
first=$pid
await_line 'waiting for' "$work/first"
node 1 second "$worker" env meet
wait "$pid" "$first"
code_is 'a node that comes late' 0 $? "$work/first"
file_says '  the first says so' "$work/first" "^tdrun: waiting for 1 of 2 nodes at 127.0.0.1:$port\$"

port=$(free_port)
dir=$(notes spread)
node 0 first "$worker" "note:$dir" sleep:60
first=$pid
node 1 second "$worker" "note:$dir" "until:$dir/0.0" fail:1:3:9
wait "$pid"
code_is 'a failure on node 1: its code' 3 $? "$work/second"
wait "$first"
code_is 'a failure on node 1: the code of node 0' 3 $? "$work/first"
file_says 'a failure on node 1: named on node 0' "$work/first" 'rank 1 failed first: exit code 3'
all_gone "$dir"/*
tap $? 'a failure on node 1: no worker is left'

port=$(free_port)
node 0 first --max-restarts 1 "$worker" fail:1:3:1 meet
first=$pid
node 1 second --max-restarts 1 "$worker" fail:1:3:1 meet
wait "$pid" && wait "$first"
code_is 'a restart on both nodes' 0 $? "$work/first"
file_says 'a restart on both nodes: node 0 met in attempt 1' "$work/first" '^met rank=0 world=2 .* attempt=1'

port=$(free_port)
dir=$(notes back)
node 0 first --max-restarts 1 "$worker" "note:$dir" "until:$dir/go" meet
first=$pid
node 1 second --max-restarts 1 "$worker" "note:$dir" "until:$dir/go" meet
wait_for "$dir/0.0" "$dir/1.0"
kill -KILL "$pid"
wait "$pid"
all_gone "$dir/1.0"
tap $? 'a node that dies: its worker dies, too'
node 1 second --max-restarts 1 "$worker" "note:$dir" "until:$dir/go" meet
wait_for "$dir/0.1" "$dir/1.1"
touch "$dir/go"
wait "$pid"
code_is 'a node that dies and comes back' 0 $? "$work/second"
wait "$first"
code_is 'a node that dies and comes back: node 0' 0 $? "$work/first"
file_says 'node 0 says what happened' "$work/first" 'node on host .* (was lost|ended and was started again)'

# A launcher that stands still, or whose link is cut, for just so long that node 0 gives it up.
port=$(free_port)
dir=$(notes still)
node 0 first --max-restarts 1 "$worker" "note:$dir" "until:$dir/go" meet
first=$pid
node 1 second --max-restarts 1 "$worker" "note:$dir" "until:$dir/go" meet
wait_for "$dir/0.0" "$dir/1.0"
kill -STOP "$pid"
await_line 'was lost: no sign of life' "$work/first"
kill -CONT "$pid"
wait_for "$dir/0.1" "$dir/1.1"
tap $? 'a node that was given up and is heard again: both start again' "$work/second"
touch "$dir/go"
wait "$pid"
code_is 'a node that was given up: it ends well' 0 $? "$work/second"
wait "$first"
code_is 'a node that was given up: so does node 0' 0 $? "$work/first"
file_says 'a node that was given up: it says why it joins anew' "$work/second" 'gave it up'

port=$(free_port)
dir=$(notes host)
node 0 first "$worker" "note:$dir" sleep:60
first=$pid
node 1 second "$worker" "note:$dir" sleep:60
wait_for "$dir/0.0" "$dir/1.0"
kill -KILL "$first"
wait "$pid"
code_is 'the host dies: the other ends' 1 $? "$work/second"
file_says 'the host dies: it says so' "$work/second" "the launcher at 127.0.0.1:$port is gone"
all_gone "$dir"/*
tap $? 'the host dies: no worker is left'

port=$(free_port)
dir=$(notes term)
node 0 first "$worker" "note:$dir" sleep:60
first=$pid
node 1 second "$worker" "note:$dir" sleep:60
wait_for "$dir/0.0" "$dir/1.0"
kill -TERM "$pid"
wait "$pid"
code_is 'SIGTERM to node 1: its code' 143 $? "$work/second"
wait "$first"
code_is 'SIGTERM to node 1: the code of node 0' 143 $? "$work/first"
file_says 'SIGTERM to node 1: node 0 says so' "$work/first" 'the launcher on host .* was stopped by SIGTERM'

port=$(free_port)
dir=$(notes twice)
node 0 first "$worker" "note:$dir" sleep:60
first=$pid
node 1 second "$worker" "note:$dir" sleep:60
second=$pid
wait_for "$dir/0.0" "$dir/1.0"
node 1 third "$worker" sleep:60
wait "$pid"
code_is 'a node rank that is taken' 1 $? "$work/third"
file_says 'a node rank that is taken: by whom' "$work/third" "node rank 1 is taken by host .* \(pid $second\)"
kill "$first"
wait "$first" "$second"

port=$(free_port)
node 0 first --join-timeout 1 "$worker" sleep:60
wait "$pid"
code_is 'a node that never comes' 1 $? "$work/first"
file_says 'a node that never comes: how many came' "$work/first" 'waited 1 s for 2 nodes, and 1 came'
fails 'a host that never comes' 1 "no launcher at 127.0.0.1:$port after 1 s" tdrun --nnodes 2 --node-rank 1 \
    --master-addr 127.0.0.1 --master-port "$port" --join-timeout 1 "$worker"
fails 'a host that is waited for' 1 "waiting for node 0's launcher: no store at 127.0.0.1:$port .*last: Connection refused" \
    tdrun --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port "$port" --join-timeout 6 "$worker"

# ---- the job's token ----

port=$(free_port)
dir=$(notes stranger)
"$apps/tdrun" --nproc-per-node 2 --master-port "$port" "$worker" "note:$dir" "until:$dir/go" meet \
    >"$work/out" 2>&1 &
launcher=$!
wait_for "$dir/0.0" "$dir/1.0"
# Ends the job with code 0, if it is believed: twice, without a proof and with a wrong one.
python3 - "$port" <<'END'
import socket, struct, sys
key, value = b"launch/0/down/1", b"end 0\nall is well"
order = struct.pack("<IIII", 1, len(key), len(value), 0) + key + value
for proof in b"", bytes(32):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    s.sendall(b"TDSTORE\x02" + bytes(16))
    s.recv(56, socket.MSG_WAITALL)
    try:
        s.sendall(proof + order * 2)
        while s.recv(100):
            pass
    except ConnectionError:
        pass
END
tap $? 'a stranger is turned away' "$work/out"
[ "$(awk '$2 ~ /:'"$(printf %04X "$port")"'$/ && $4 == "0A" && $2 !~ /^0100007F/' /proc/net/tcp /proc/net/tcp6 | wc -l)" -eq 0 ]
tap $? 'one node listens on the loopback only'
touch "$dir/go"
wait "$launcher"
code_is 'a stranger ends no job' 0 $? "$work/out"
says 'the ranks met after it' '^met rank=1 world=2 '
[ "$(grep -c "did not prove this job's token" "$work/out")" -eq 1 ]
tap $? 'a stranger is told of once' "$work/out"

port=$(free_port)
node 1 second --token-file "$work/token" "$worker" env meet
second=$pid
node 0 first --token-file "$work/token" --require-token "$worker" env meet
wait "$pid" && wait "$second"
code_is 'two nodes with a token' 0 $? "$work/first"
[ "$(stat -c %a "$work/token")" = 600 ] && ! grep -q "$(cat "$work/token")" "$work/first" "$work/second"
tap $? 'the token is known to its owner only'
! grep -q 'asks for no token' "$work/first"
tap $? 'and nobody warns'

port=$(free_port)
dir=$(notes wrong)
node 0 first --token-file "$work/token" "$worker" "note:$dir" sleep:60
first=$pid
node 1 second --token-file "$work/other" --join-timeout 6 "$worker" sleep:60
wait "$pid"
code_is 'a node with another token' 1 $? "$work/second"
file_says 'a node with another token: what to do' "$work/second" 'has another token than this process.*--token-file'
node 1 second --join-timeout 6 "$worker" sleep:60
wait "$pid"
file_says 'a node without a token' "$work/second" 'wants a token and this process has none'
kill "$first"
wait "$first"

port=$(free_port)
fails '--require-token and none' 64 'give all nodes the same --token-file' \
    tdrun --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --require-token "$worker"
fails 'env:// and none, though one is required' 1 'no token, and TANDEM_REQUIRE_TOKEN is set' env \
    TANDEM_REQUIRE_TOKEN=1 RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" "$apps/wine_ddp_launch" 1
fails 'a host name that others reach, and no token' 1 'waited 1 s' tdrun --nnodes 2 --node-rank 0 \
    --master-addr "$(hostname)" --master-port "$port" --join-timeout 1 "$worker"
says 'is warned of' 'asks for no token'
chmod 644 "$work/token"
fails "a token that others may read" 1 'chmod 600' tdrun --token-file "$work/token" "$worker"

# ---- what hangs ----

fails 'an error file that is a FIFO' 3 'rank 0 failed first: exit code 3' timeout 20 \
    "$apps/tdrun" sh -c 'rm -f "$TANDEM_ERROR_FILE"; mkfifo "$TANDEM_ERROR_FILE"; exit 3'
fails 'a FIFO for the message of a fatal error' 134 'rank 0 failed first: signal 6' timeout 20 \
    "$apps/tdrun" sh -c 'mkfifo "$TANDEM_ERROR_FILE"; exec "$0" fatal:0' "$worker"
mkfifo "$work/console"
exec 9<>"$work/console" # which nobody reads
timeout 30 "$apps/tdrun" --log-dir "$work/unread" --rdzv-id unread --tee 3 sh -c 'seq 18000' >"$work/console" 2>&1
code_is 'a console that nobody reads: the job ends' 0 $? "$work/out"
[ "$(wc -l <"$work/unread/unread/attempt_0/0/stdout")" -gt 1000 ]
tap $? 'a console that nobody reads: the file has the lines'
"$apps/tdrun" sh -c 'exit 3' >"$work/console" 2>&1 &
launcher=$!
for ((i = 0; i < 60; i++)); do
    sleep 0.5
    kill "$launcher" 2>/dev/null || break
done
! kill -KILL "$launcher" 2>/dev/null
tap $? 'a console that nobody reads: a signal ends the launcher'
exec 9<&-
few() { (ulimit -n "$1" && shift && exec timeout 20 "$@"); }
for files in 12 13 31; do # with 13 the store could take one connection, and two workers waited for it
    fails "$files descriptors: said before anything waits" 1 "32 open files are needed for 2 processes and $files are allowed" \
        few $files "$apps/tdrun" --nproc-per-node 2 "$worker" meet
done
fails 'a world that is absurd' 1 'the most is' timeout 20 env RANK=0 WORLD_SIZE=2147483647 \
    MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" "$apps/wine_ddp_launch" 1

# ---- nodes that come and go ----

elastic() { # elastic NAME ARGUMENTS...
    local name=$1
    shift
    rm -f "$work/$name"
    "$apps/tdrun" --nnodes 1:2 --rdzv-endpoint "127.0.0.1:$port" "$@" >"$work/$name" 2>&1 &
    pid=$!
}

port=$(free_port)
dir=$(notes elastic)
elastic first "$worker" "note:$dir" "until:$dir/go" meet
first=$pid
wait_for "$dir/0.0" # alone, after the last call
tap $? 'elastic: one node begins' "$work/first"
elastic second "$worker" "note:$dir" "until:$dir/go" meet
wait_for "$dir/0.1" "$dir/1.1"
tap $? 'elastic: a second joins, and both start' "$work/first"
file_says 'elastic: the first says so' "$work/first" 'has joined'
kill -KILL "$pid"
wait "$pid"
wait_for "$dir/0.2"
tap $? 'elastic: the second dies, and the first goes on' "$work/first"
file_says 'elastic: no restart was used' "$work/first" 'attempt 2; 0 of 0 restarts used'
touch "$dir/go"
wait "$first"
code_is 'elastic: it ends well' 0 $? "$work/first"
file_says 'elastic: alone again' "$work/first" '^met rank=0 world=1 .* attempt=2'
rm -f "$dir"/*.*.partial
all_gone "$dir"/[0-9]*
tap $? 'elastic: no worker is left'

# The mesh takes what is left; of a world that it does not fit, nothing is left.
port=$(free_port)
dir=$(notes elastic_mesh)
elastic first --mesh 'rep=2,dp=*' --nproc-per-node 2 "$worker" "note:$dir" "until:$dir/go" meet
first=$pid
wait_for "$dir/0.0" "$dir/1.0"
tap $? 'mesh: two workers begin' "$work/first"
elastic second --mesh 'rep=2,dp=*' --nproc-per-node 1 "$worker" "note:$dir" "until:$dir/go" meet
wait "$first"
code_is 'mesh: the third has no place' 1 $? "$work/first"
file_says 'mesh: and why' "$work/first" "^tdrun: the mesh 'rep=2,dp=\*' does not fit 3 ranks: 3 is no multiple of 2"
file_says 'mesh: and what to do' "$work/first" 'start 4, or another multiple\. The job ends; started again, it goes on'
wait "$pid"
rm -f "$dir"/*.*.partial
all_gone "$dir"/[0-9]*
tap $? 'mesh: no worker is left'

done_testing
