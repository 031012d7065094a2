#!/usr/bin/env bash
# Labels are names: train_net, test_net, automatic resume and predict with folders that have fewer, more,
# renamed or reordered classes, and with lists of names as editors leave them.
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
worker=$PWD/${BUILD:-build/cc}/tests/worker_model
cd "$work" || exit 1
for split in train val; do # grey is black to the network, and rgb is not: a label that moves is seen
    for class in ant bee cow; do
        mkdir -p "d/$split/$class"
    done
    cp "$pictures"/grey.{png,jpg} d/$split/ant/
    cp "$pictures"/palette{,_60}.png d/$split/bee/
    cp "$pictures"/{rgb,rgb_stored}.png d/$split/cow/
done
keys=(MODEL.NUM_CLASSES 3 TRAIN.BATCH_SIZE 3 TRAIN.IM_SIZE 32 TEST.IM_SIZE 32 TEST.CROP_SIZE 32 TEST.BATCH_SIZE 2
    TRAIN.WORKERS 0 TRAIN.DATASET d TEST.DATASET d OPTIM.MAX_EPOCH 1 OPTIM.BASE_LR 0.01 RNG_SEED 1)
train=("$apps/train_net" "${keys[@]}") tests=("$apps/test_net" "${keys[@]}" OUT_DIR run)

works 'a run' "${train[@]}" OUT_DIR run
works 'its test' "${tests[@]}"
mean=0
for class in ant bee cow; do
    mkdir -p "only_$class/val"
    cp -r "d/val/$class" "only_$class/val/"
    works "a test set with $class alone" "${tests[@]}" TEST.DATASET "only_$class"
    says 'says which classes there are' "only_$class/val: labels go by the names of the sub-folders, which are 1 class: '$class', of 3\$"
    mean="$mean + $(grep -o 'Loss [0-9.]*' out | cut -d' ' -f2) / 3"
done
"${tests[@]}" >out 2>&1
awk "BEGIN { d = ($mean) - $(grep -o 'Loss [0-9.]*' out | tail -n 1 | cut -d' ' -f2); exit !(d < 1e-3 && d > -1e-3) }"
tap $? 'their losses make that of the whole set' out

# ---- other names ----
mkdir -p other/val more/val
cp -r d/val/ant other/val/ && cp -r d/val/cow other/val/Bee
cp -r d/val/* more/val/ && cp -r d/val/ant more/val/zebra
fails 'a renamed class' 1 "'Bee' has the name of no class; the nearest is 'bee'.*2 classes: 'Bee', 'ant'.*3 classes: 'ant', 'bee', 'cow'" \
    "${tests[@]}" TEST.DATASET other
fails 'one more class' 1 "'zebra' has the name of no class.*4 classes: .*3 classes: 'ant', 'bee', 'cow'" "${tests[@]}" TEST.DATASET more
fails 'a test class that training never saw' 1 "TEST.SPLIT: .*'zebra' has the name of no class" "${train[@]}" OUT_DIR x TEST.DATASET more
works 'a test set without a class' "${train[@]}" OUT_DIR fewer TEST.DATASET only_cow
says 'says so' "only_cow/val: labels go by the names"
mkdir -p linked/val
ln -s "$work/d/val/cow" linked/val/cow
works 'a link is a class of its name' "${tests[@]}" TEST.DATASET linked
same_result=$(grep -o 'Loss [0-9.]*' out)
"${tests[@]}" TEST.DATASET only_cow 2>&1 | grep -qF "$same_result"
tap $? 'with the same loss'

# ---- going on ----
cp -r d renamed && mv renamed/train/bee renamed/train/cat && mv renamed/val/bee renamed/val/cat
fails 'resuming on renamed classes' 1 "'cat' has the name of no class.*'ant', 'cat', 'cow'.*'ant', 'bee', 'cow'" \
    "${train[@]}" OUT_DIR run OPTIM.MAX_EPOCH 3 TRAIN.DATASET renamed TEST.DATASET renamed
fails 'weights of other classes' 1 "TRAIN.LOAD_OPT False.*'cat' has the name of no class" \
    "${train[@]}" OUT_DIR x MODEL.WEIGHTS run/best TRAIN.DATASET renamed TEST.DATASET renamed
works 'weights alone may begin other classes' "${train[@]}" OUT_DIR new MODEL.WEIGHTS run/best TRAIN.LOAD_OPT False \
    TRAIN.DATASET renamed TEST.DATASET renamed
says 'and say so' "the weights are of 3 classes: 'ant', 'bee', 'cow'; they begin 3 classes: 'ant', 'cat', 'cow'"
works 'weights of these classes' "${train[@]}" OUT_DIR again MODEL.WEIGHTS run/best TRAIN.LOAD_OPT False
! grep -q 'the weights are of 3' out
tap $? 'begin no others' out
mkdir -p two/val && cp -r d/train two/ && rm -r two/train/bee && cp -r two/train/* two/val/
works 'training two of the classes' "${train[@]}" OUT_DIR some MODEL.WEIGHTS run/best TRAIN.DATASET two TEST.DATASET two
python3 - run/best some/best <<'P'
import json, struct, sys
def names(path):
    with open(path, 'rb') as f:
        return json.loads(f.read(struct.unpack('<Q', f.read(8))[0]))['__metadata__']['classes']
sys.exit(names(sys.argv[1]) != names(sys.argv[2]))
P
tap $? 'keeps the numbers of all'
works 'fewer folders than outputs' "${train[@]}" OUT_DIR wide MODEL.NUM_CLASSES 5
works 'are tested by name' "${tests[@]}" OUT_DIR wide MODEL.NUM_CLASSES 5 TEST.DATASET only_cow
says 'too' "which are 1 class: 'cow', of 3"
works 'and predicted' "$apps/predict" wide/best "$pictures/rgb.png"
says 'by name' '%  cow$'
says 'or number' '%  class 4$'
"$worker" resnet18 3 nameless && "$worker" resnet18 3 many classes 'a
b
c
d' && "$worker" resnet18 3 blank classes 'a

c' || exit 1
works 'a file without names, all classes' "${tests[@]}" MODEL.WEIGHTS nameless
fails 'and fewer' 1 "no names for its 3 classes.*1 class: 'cow'" "${tests[@]}" MODEL.WEIGHTS nameless TEST.DATASET only_cow
fails 'a file with too many names' 1 'MODEL.WEIGHTS: many names 4 classes, and its model has 3' "${tests[@]}" MODEL.WEIGHTS many
fails 'predict: too many names' 1 'many names 4 classes, and its model has 3' "$apps/predict" many "$pictures/rgb.png"
fails 'a file with a blank name' 1 'blank:3: the line before is blank' "${tests[@]}" MODEL.WEIGHTS blank
fails 'predict: a blank name' 1 'blank:3: the line before is blank' "$apps/predict" blank "$pictures/rgb.png"

# ---- lists for predict ----
listed() { # listed NAME TEXT
    printf "$2" >list
    works "a list $1" "$apps/predict" nameless "$pictures/rgb.png" --classes list
    grep '%' out | sed 's/.*%  //' | sort | tr '\n' , >names
    test "$(cat names)" = 'ant,bee,cow,'
    tap $? "a list $1: the three names" out
}
listed 'with an empty last line' 'ant\nbee\ncow\n\n'
listed 'with a mark of byte order' '\xef\xbb\xbfant\nbee\ncow\n'
listed 'of Windows' '\xef\xbb\xbfant\r\nbee\r\ncow\r\n'
listed 'with blanks' '  ant \nbee\t\ncow  '
refused() { # refused NAME PATTERN TEXT
    printf "$3" >list
    fails "a list $1" 1 "$2" "$apps/predict" "${4:-nameless}" "$pictures/rgb.png" --classes list
}
refused 'with a blank line between' 'list:3: the line before is blank' 'ant\n\ncow\n'
refused 'with a name twice' "'ant' is the name of two classes" 'ant\nbee\nant\n'
refused 'in Latin-1' "list:2: 'caf\?' cannot be a class's name" 'ant\ncaf\xe9\ncow\n'
refused 'in UTF-16' 'a byte 0.*UTF-8' '\xff\xfea\x00\n\x00b\x00\n\x00'
refused 'with what a terminal obeys' "list:1: 'z\?\[2J' cannot be" 'z\x1b[2J\nbee\ncow\n'
refused 'that is too short' 'list names 2 classes, and the model has 3' 'ant\nbee\n'
refused 'that is empty' 'list names 0 classes, and the model has 3' ''
refused "of the model's names in another order" "line 1 is 'bee', which the model knows as class 1.*'ant', 'bee', 'cow'.*'bee', 'ant', 'cow'" 'bee\nant\ncow\n' run/best

# ---- hidden files, and names that terminals obey ----
mkdir -p h/val/.ipynb_checkpoints h/val/__MACOSX/cow h/val/cow/.thumbnails
cp d/val/cow/rgb.png h/val/cow/ && cp d/val/cow/rgb.png h/val/.ipynb_checkpoints/
printf x | tee h/val/cow/._rgb.png h/val/Thumbs.db h/val/cow/desktop.ini >h/val/__MACOSX/cow/._rgb.png
works 'hidden files and folders' "${tests[@]}" TEST.DATASET h
says 'are no images' '\(1 images\)$'
says 'and are counted' 'h/val: skipped 6 hidden files and folders'
escape=$(printf '\033')
mkdir -p "esc/val/z${escape}[2J" && cp d/val/cow/rgb.png "esc/val/z${escape}[2J/"
cp -r only_cow bad && head -c 300 d/val/cow/rgb.png >"bad/val/cow/0${escape}[31m.png"
fails 'a class that clears the screen' 1 "'z\?\[2J' cannot be a class's name" "${tests[@]}" TEST.DATASET esc
cat out >all
fails 'a damaged image' 1 'cow/0\?\[31m.png: this PNG cannot be read' "${tests[@]}" TEST.DATASET bad
cat out >>all
works 'damaged images are skipped if DATA.SKIP_BAD says so' "${tests[@]}" TEST.DATASET bad DATA.SKIP_BAD True
says 'and listed' 'skipped: .*cow/0\?\[31m.png'
cat out >>all
cp d/val/cow/rgb.png "x${escape}[2J.png"
works 'predict' "$apps/predict" nameless "x${escape}[2J.png"
says 'prints a name that is clean' '^x\?\[2J.png$'
cat out >>all
! grep -q "$escape" all
tap $? 'no escape has come to the terminal' all
done_testing
