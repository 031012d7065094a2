#!/usr/bin/env bash
# The imagenet lesson: folders of pictures, alone and by the launcher; what it prints, saves and loads.
. "$(dirname "$0")/tap.sh"
# shellcheck source=tests/train_net.sh
. "$(dirname "$0")/train_net.sh"
export OMP_NUM_THREADS=1
cd "$work" || exit 1
make_folders data
net=("$apps/imagenet" --data data/train --classes 5 --size 64 --batch-size 3)
works 'alone' "${net[@]}" --save alone --print-every 2
says 'the article'"'"'s learning rate' '^data: 12 pictures in 5 classes; batch 3, lr 0\.1,'
says 'its heading' '^=======  Training  =======$'
says 'its steps' '^== step: \[  2/4\] \[1/1\] \| loss: [0-9.]+ \| acc: +[0-9.]+%$'
says 'saved' '^== saved: alone$'
works 'predict needs no flags' "$apps/predict" alone "$OLDPWD/tests/pictures/rgb.png"
says 'and knows the classes' '%  (grey|large|palette|rgb|sampled)$'
works 'by the launcher' "$apps/tdrun" --nproc-per-node 2 "${net[@]}" --save two
says 'each rank says hello' '^\[init\] == local rank: 1, global rank: 1 ==$'
says 'the last step' '^== step: \[  2/2\] \[1/1\]'
says 'rank 0 saves' '^\(rank: 0\)   == Saved: two$'
says 'all load' '^\(rank: 1\)   == Loaded: two$'
works 'again' "$apps/tdrun" --nproc-per-node 2 "${net[@]}" --save again
same 'the same bits' two again
fails 'no such folder' 1 "cannot open the folder 'nowhere': No such file" "$apps/imagenet" --data nowhere
fails 'too many classes' 1 'data/train has 5 classes, and the model --classes 4' "$apps/imagenet" --data data/train --classes 4
cp -r data bad
head -c 30 data/train/rgb/rgb.bmp >bad/train/rgb/rgb.bmp
fails 'a bad picture' 1 'bad/train/rgb/rgb.bmp' "${net[@]}" --data bad/train --save x
works 'skipped' "${net[@]}" --data bad/train --save x --skip-bad
says 'and listed' 'rgb.bmp'
done_testing
