#!/usr/bin/env bash
# tdrun --elastic: workers that are killed are replaced, and the run ends with the bits of an undisturbed one.
# run: waits
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1
worker=$PWD/${BUILD:-build/cc}/tests/worker_elastic
set -m
trap 'kill -KILL $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
steps=1500

run() { # run FOLDER OPTION...: in the background
    mkdir "$work/$1"
    "$apps/tdrun" "${@:2}" "$worker" "$work/$1" $steps >"$work/$1/out" 2>&1 &
    launcher=$!
}
started() { [ "$(wc -l <"$folder/pids")" -ge "$1" ]; } # started N: N workers have been started
fingerprint() { grep -o 'fingerprint [0-9a-f]*' "$work/$1/out" | sort -u; }

run alone --elastic 1:1
wait $launcher
tap $? 'an elastic run of one worker ends' "$work/alone/out"
hash=$(fingerprint alone)

run storm --elastic 1:3
folder=$work/storm
killed=0
for n in 3 4 5 6 7 8; do
    await started $n && sleep 0.2
    victim=$(tail -n $((n % 3 + 1)) "$folder/pids" | head -n 1) # of the last three, some may have ended
    kill -KILL "$victim" 2>/dev/null && killed=$((killed + 1)) || kill -KILL "$(tail -n 1 "$folder/pids")"
done
wait $launcher
tap $? 'a run of three workers, of which six are killed, ends' "$folder/out"
[ "$(wc -l <"$folder/pids")" -eq 9 ] && [ "$(fingerprint storm)" = "$hash" ]
tap $? "nine workers were started, and the fingerprint is an undisturbed run's" "$folder/out"

run lost --elastic 1:1 --max-restarts 1
folder=$work/lost
await test -e "$folder/run.safetensors"
kill -KILL "$(head -n 1 "$folder/pids")"
wait $launcher
tap $? 'where all that had the state are dead, the run starts again' "$folder/out"
grep -q 'start the run again from its latest checkpoint' "$folder/out" && [ "$(fingerprint lost)" = "$hash" ]
tap $? 'from its checkpoint, and says so; the fingerprint is the same' "$folder/out"

steps=0
run dies --elastic 1:2
wait $launcher
code=$?
[ $code -eq 137 ] && grep -q 'signal 9' "$work/dies/out"
tap $? 'workers that always die end the run' "$work/dies/out"

"$apps/tdrun" --elastic 3:2 true 2>"$work/err"
[ $? -eq 64 ] && grep -q 'the range goes down' "$work/err"
tap $? '--elastic 3:2 is refused' "$work/err"
"$apps/tdrun" --elastic 1:2 --nnodes 2 true 2>"$work/err"
[ $? -eq 64 ] && grep -q 'on one node' "$work/err"
tap $? '--elastic with --nnodes is refused' "$work/err"
for folder in alone storm lost dies; do
    sort -u "$work/$folder/pids" | while read -r pid; do [ ! -e "/proc/$pid" ] || echo "$pid"; done
done >"$work/left"
[ ! -s "$work/left" ]
tap $? 'nothing is left behind' "$work/left"
done_testing
