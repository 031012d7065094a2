#!/usr/bin/env bash
# predict: what it prints, what it refuses, and that its probabilities are torchvision's.
. "$(dirname "$0")/../help/tap.sh"
app=$apps/predict
worker=$PWD/${BUILD:-build/cc}/tests/worker_model
pictures=$PWD/tests/pictures
"$worker" resnet18 3 "$work/net" classes 'a cat
a dog
a house' || exit 1
"$worker" resnet18 7 "$work/nameless" || exit 1
LC_ALL=C sed -i 's/"model\./"other./g; s/"tandem\./"others./' "$work/nameless" # as another program writes it
printf 'one\ntwo\nthree\n' >"$work/names"

works 'two pictures' "$app" "$work/net" "$pictures/rgb.png" "$pictures/420.jpg" --size 64 --resize 72
says 'the picture' "^$pictures/420.jpg\$"
says 'a class by its name' '^ +[0-9]+\.[0-9]{2} %  a dog$'
awk '/%/ { sum += $1; if (seen++ && $1 > last) bad = 1; last = $1 } /^\// { seen = 0 }
     END { exit !(seen == 3 && !bad && sum > 199.95 && sum < 200.05) }' "$work/out"
tap $? 'all classes of each, sorted, make 100 %' "$work/out"
works 'other names, fewer of them' "$app" "$work/net" "$pictures/rgb.png" --classes "$work/names" --top 2 --size 64 --resize 72
says 'the other name' '%  (one|two|three)$'
tap "$(($(grep -c % "$work/out") - 2))" 'two lines' "$work/out"
works 'the same picture stored otherwise' "$app" "$work/net" "$pictures/rgb_stored.png" --classes "$work/names" --top 2 --size 64 --resize 72
grep % "$work/out" >"$work/stored"
"$app" "$work/net" "$pictures/rgb.png" --classes "$work/names" --top 2 --size 64 --resize 72 | grep % >"$work/png"
same 'gives the same' "$work/stored" "$work/png"
works 'a model without names' "$app" --arch resnet18 "$work/nameless" "$pictures/grey.jpg" --size 32 --resize 32
says 'a class by its number' '%  class [0-6]$'

# Size and normalisation of the file: those that an option or torchvision would have, and others.
small=("$app" "$work/small" "$pictures/rgb.png")
"$app" "$work/net" "$pictures/rgb.png" --size 32 --resize 40 >"$work/asked"
"$worker" resnet18 3 "$work/small" size 32 resize 40 mean '0.485 0.456 0.406' std '0.229 0.224 0.225' || exit 1
works 'a file that says what the model sees' "${small[@]}" --classes "$work/names"
grep -o '[0-9.]* %' "$work/out" >"$work/told"
grep -o '[0-9.]* %' "$work/asked" | cmp - "$work/told" >"$work/cmp" 2>&1
tap $? 'the same as by options' "$work/told"
"$worker" resnet18 3 "$work/small" size 32 resize 40 mean '0.1 0.2 0.3' std '0.9 0.9 0.9' || exit 1
works 'another mean and deviation' "${small[@]}"
! grep -o '[0-9.]* %' "$work/out" | cmp - "$work/told" >"$work/cmp" 2>&1
tap $? 'other probabilities' "$work/out"
"$worker" resnet18 3 "$work/small" mean '0.1 0.2' || exit 1
fails 'a mean that is none' 1 "mean is '0.1 0.2', not three numbers" "${small[@]}"

fails 'no architecture' 1 'does not say which model.*arch' "$app" "$work/nameless" "$pictures/rgb.png"
fails 'an unknown one' 1 "nearest name is 'resnet18'" "$app" "$work/nameless" "$pictures/rgb.png" --arch resnet81
fails 'another than the file has' 1 'layer' "$app" "$work/nameless" "$pictures/rgb.png" --arch resnet34
fails 'no such model' 1 "$work/nowhere" "$app" "$work/nowhere" "$pictures/rgb.png"
mkfifo "$work/fifo.png"
fails 'a picture that is a FIFO' 1 'fifo.png: a FIFO or device, not a regular file' timeout 60 "$app" "$work/net" "$work/fifo.png"
fails 'names in a FIFO' 1 'fifo.png: a FIFO or device, not a regular file' \
    timeout 60 "$app" "$work/net" "$pictures/rgb.png" --classes "$work/fifo.png"
fails 'no image given' 64 'IMAGE' "$app" "$work/net"
fails 'names for another number of classes' 1 'names 3 classes.*has 7' \
    "$app" "$work/nameless" "$pictures/rgb.png" --arch resnet18 --classes "$work/names"
fails 'a crop larger than the picture' 1 'cannot be larger' \
    "$app" "$work/net" "$pictures/rgb.png" --size 300
head -c 500 "$pictures/420.jpg" >"$work/cut.jpg"
fails 'one bad picture of two' 1 "$work/cut.jpg: " \
    "$app" "$work/net" "$work/cut.jpg" "$pictures/rgb.png" --size 64 --resize 72
says 'the other one is done' "^$pictures/rgb.png\$"

works 'a model as ONNX' "$app" "$work/net" --onnx "$work/net.onnx" --size 64
[ "$(wc -c <"$work/net.onnx")" -gt 44000000 ]
tap $? 'with its weights'
fails 'no folder for it' 1 'none/net.onnx.*create the folder first' "$app" "$work/net" --onnx "$work/none/net.onnx"

# torchvision's weights, without metadata; PIL's decoding and resizing, torch's probabilities.
python=${TANDEM_PYTHON:-/usr/bin/python3}
if "$python" tests/nn/models_torch.py have >/dev/null 2>&1; then
    works 'torchvision writes weights, and predicts' \
        "$python" tests/nn/models_torch.py predict resnet18 "$pictures/large.jpg" "$work/torch"
    grep % "$work/out" >"$work/theirs"
    works 'the same by predict' "$app" "$work/torch" "$pictures/large.jpg" --arch resnet18
    grep % "$work/out" >"$work/ours"
    paste "$work/theirs" "$work/ours" |
        awk '$4 != $8 || $1 - $5 > 0.011 || $5 - $1 > 0.011 { bad = 1 } END { exit bad || NR != 5 }'
    tap $? 'the same classes and probabilities' "$work/ours"
else
    echo '# skipped: no Python with torch and torchvision (make deps-bench, or TANDEM_PYTHON)'
fi
done_testing
