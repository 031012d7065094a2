#!/usr/bin/env bash
# --graph on GPUs, here two emulated ones: steps are recorded and replayed to the same bits, alone and by
# two processes (make EMULATE=1 test).
. "$(dirname "$0")/cuda_apps.sh"
cd "$work" || exit 1

# Steps of two shapes, of 4 and of 2 images.
shapes=(--limit 6 --batch-size 4 --workers 1 --lr 0.0001 --epochs 5)
works 'steps of two shapes' "$app" "${shapes[@]}" --device cuda --save eager --save-every-steps 7
says 'the GPU is named' 'cuda:0, emulated GPU 0'
works 'captured' "$app" "${shapes[@]}" --device cuda --save graph --save-every-steps 7 --graph
says 'it says what it does' '^--graph: after three eager steps they are recorded, and replayed by cuda:0'
says 'both shapes of batches are replayed' '^graph: 6 eager steps, 2 recorded, 2 replayed$'
same 'captured: the same bits' eager graph
works 'on the CPU, checked' "$app" "${few[@]}" --epochs 2 --graph
says 'it says what it does' '^--graph: a CPU has no graphs: steps run eagerly'
says 'nothing is replayed' '^graph: 2 eager steps, 0 recorded, 0 replayed$'
works 'two GPUs, --graph, by way of the host' "$app" "${few[@]}" --spawn 2 --epochs 4 --device cuda --graph
says 'it says why not' '^graph: 4 eager steps, 0 recorded, 0 replayed; .*goes by way of the host'
two=("$app" "${few[@]}" --limit 8 --epochs 5 --spawn 2 --device cuda)
TANDEM_NCCL=emulated works 'two GPUs, by NCCL' "${two[@]}" --save eager2
TANDEM_NCCL=emulated works 'two GPUs, captured' "${two[@]}" --graph --save graph2
says 'it says what it does' '^--graph: .* replayed by cuda:0, if all ranks can'
says 'steps are replayed' '^graph: 3 eager steps, 1 recorded, 1 replayed$'
same 'captured on two GPUs: the same bits' eager2 graph2

speedrun=("$apps/cifar_speedrun" --limit 100 --batch-size 20 --width 0.05 --workers 0 --epochs 4
    --plain-test --device cuda)
what_it_says() { # without the seconds
    sed -n 's/^\(== epoch.*loss: [0-9.]*\|== test: .*acc: *[0-9.]*\).*/\1/p' "$work/out"
}
for recipe in sgd muon; do # sgd: each fifth step looks ahead, as a kind of its own
    case $recipe in
    sgd) steps='10 eager steps, 2 recorded, 8 replayed' ;;
    muon) steps='6 eager steps, 2 recorded, 12 replayed' ;;
    esac
    works "the speed run on a GPU, $recipe" "${speedrun[@]}" --recipe $recipe
    what_it_says >"$work/said"
    works "captured" "${speedrun[@]}" --recipe $recipe --graph
    says 'anew from when the whitening is frozen' "^graph: $steps\$"
    what_it_says >"$work/said2"
    same 'captured: the same losses and answers' "$work/said" "$work/said2"
done
done_testing
