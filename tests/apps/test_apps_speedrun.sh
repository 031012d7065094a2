#!/usr/bin/env bash
# The speed run on few images and a narrow net: both recipes learn, equal seeds give equal runs.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
app=$apps/cifar_speedrun
few="--limit 1000 --batch-size 50 --width 0.25"
cd "$work" || exit 1

# Ten classes: guessing gives 10 %.
accuracy_of() {
    sed -n 's/^== test: [0-9]* images | acc:  *\([0-9.]*\)%.*/\1/p' "$1"
}
learns() {
    awk -v least="$2" 'BEGIN { found = 0 } { found = 1; if ($1 < least) bad = 1 }
                       END { exit !found || bad }' <<<"$(accuracy_of "$work/out")"
    tap $? "$1 learns: $(accuracy_of "$work/out") %, at least $2"
}
losses_of() {
    sed -n 's/^\(== epoch.*loss: [0-9.]*\).*/\1/p' "$1"
}

# shellcheck disable=SC2086
works 'sgd' "$app" $few --epochs 4.5
learns sgd 27
says 'a part of an epoch is the last' '^== epoch: \[5\] \| step 90/90 '
losses_of "$work/out" >"$work/losses"
# shellcheck disable=SC2086
works 'sgd again, other threads and workers' "$app" $few --epochs 4.5 --threads 3 --workers 0
losses_of "$work/out" >"$work/losses2"
same 'the same losses' "$work/losses" "$work/losses2"
# shellcheck disable=SC2086
works 'muon, two runs' "$app" $few --epochs 4 --recipe muon --runs 2 --plain-test --save-model model
learns muon 40
says 'mean of the runs' '^== 2 runs: mean [0-9.]+%, standard deviation [0-9.]+$'
fails 'its weights are for programs that make the net' 1 'does not say which model' \
    "$apps/predict" model "$OLDPWD/tests/pictures/rgb.png"
# The control: without training there is nothing to be seen.
# shellcheck disable=SC2086
works 'a single step' "$app" $few --epochs 0.01
awk '{ exit !($1 < 20) }' <<<"$(accuracy_of "$work/out")"
tap $? "one step does not learn: $(accuracy_of "$work/out") %"

fails 'more in a batch than there are' 1 'batch-size 64 is more than the 32' "$app" --limit 32 --batch-size 64
fails 'another recipe' 64 'recipe' "$app" --recipe adam
done_testing
