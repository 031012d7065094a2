#!/usr/bin/env bash
# The imagenet lesson: folders of pictures, one process and two; what it prints, saves and loads.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
export OMP_NUM_THREADS=1
cd "$work" || exit 1
make_folders data
net=("$apps/imagenet" --data data/train --batch-size 3)
works 'one process' "$apps/tdrun" --nproc-per-node 1 "${net[@]}"
says 'its heading' '^=======  Training  =======$'
says 'its steps' '^== step: \[  4/4\] \[1/1\] \| loss: [0-9.]+ \| acc: +[0-9.]+%$'
says 'saved' '^\(rank: 0\)   == Saved: resnet18\.safetensors$'
works 'two epochs of fewer pictures' "$apps/tdrun" --nproc-per-node 1 "${net[@]}" --limit 6 --epochs 2
says 'the last step' '^== step: \[  2/2\] \[2/2\]'
works 'two processes' "$apps/tdrun" --nproc-per-node 2 "${net[@]}"
says 'each rank says hello' '^\[init\] == local rank: 1, global rank: 1 ==$'
says 'the last step' '^== step: \[  2/2\] \[1/1\]'
says 'rank 0 saves' '^\(rank: 0\)   == Saved: resnet18\.safetensors$'
says 'all load' '^\(rank: 1\)   == Loaded: resnet18\.safetensors$'
mv resnet18.safetensors two
works 'again' "$apps/tdrun" --nproc-per-node 2 "${net[@]}"
same 'the same bits' two resnet18.safetensors
works 'predict needs no flags' "$apps/predict" two "$pictures/rgb.png"
says 'and it answers' '[0-9] %'
fails 'no folder' 64 '^usage: imagenet --data FOLDER' "$apps/imagenet"
fails 'no launcher' 1 'tdrun sets them; srun and mpirun' "$apps/imagenet" --data data/train
one=("$apps/tdrun" --nproc-per-node 1)
fails 'no such folder' 1 "cannot open the folder 'nowhere': No such file" "${one[@]}" "$apps/imagenet" --data nowhere
cp -r data bad
head -c 30 data/train/rgb/rgb_stored.png >bad/train/rgb/rgb_stored.png
fails 'a bad picture' 1 'bad/train/rgb/rgb_stored.png' "${one[@]}" "$apps/imagenet" --data bad/train --batch-size 3
done_testing
