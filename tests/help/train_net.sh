# Sourced after tap.sh: small folders of pictures, and train_net on them. Not a test itself.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID TANDEM_MODELS
repository=$PWD
pictures=$PWD/tests/pictures
[ -e "$apps/train_net" ] || { echo "1..0 # SKIP no train_net"; exit 0; }
if ! "$apps/train_net" --cfg "$repository/apps/tools/config/resnet18.yaml" --keys >/dev/null 2>&1; then
    echo 1..1
    echo 'not ok 1 - train_net # SKIP this build reads no YAML: make deps'
    [ -z "${CI:-}" ]
    exit
fi

# Five classes of two to three pictures each, as training and as test data.
make_folders() { # make_folders FOLDER
    local class split
    for split in train val; do
        while read -r class files; do
            mkdir -p "$1/$split/$class"
            for file in $files; do
                cp "$pictures/$file" "$1/$split/$class/"
            done
        done <<'LIST'
grey grey.png grey.jpg grey_stored.png
large large.jpg progressive.jpg
palette palette_60.png palette.png
rgb rgb.png rgb_stored.png 444.jpg
sampled 420.jpg 422.jpg
LIST
    done
}

# until_line FILE PATTERN PID: waits until the output has such a line, or the process has ended.
until_line() {
    until grep -qsE -- "$2" "$1" || ! kill -0 "$3" 2>/dev/null; do
        sleep 0.02
    done
}

weights_of() { # weights_of FILE: a number of a model's weights alone
    python3 -I -S "$repository/tests/help/weights.py" hash "$1"
}
