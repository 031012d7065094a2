#!/usr/bin/env bash
# examples/ against an installed tandem, by pkg-config and by CMake: they build without a warning and do
# what they say. docs/your-own.md shows their code.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
build=${BUILD:-build/cc}
[[ $build != *-emulated* ]] || skip_all 'examples' 'an emulated GPU is not for use'
command -v pkg-config >/dev/null || skip_all 'examples' 'pkg-config is not installed: make deps'
worker=$PWD/$build/tests/worker_model
picture=$PWD/tests/pictures/rgb.png
CC=${build#build/}
export CC=${CC%-nocuda}
[[ $build != *-nocuda ]] || export CUDA=0

works 'the code of docs/your-own.md is in examples/' python3 - <<'END'
import glob, re, sys
files = [open(name).read() for name in glob.glob("examples/*.c")]
blocks = re.findall(r"^```c\n(.*?)^```$", open("docs/your-own.md").read(), re.M | re.S)
missing = [block for block in blocks if not any(block in text for text in files)]
sys.exit("".join(missing) if missing or len(blocks) < 5 else 0)
END
works 'make install' make --no-print-directory install PREFIX="$work/inst"
export PKG_CONFIG_PATH=$work/inst/lib/pkgconfig
mkdir "$work/examples"
cp examples/*.c examples/Makefile examples/CMakeLists.txt "$work/examples"
cd "$work/examples" || exit 1

if command -v cmake >/dev/null; then
    works 'cmake' cmake -S . -B cmake -DCMAKE_C_FLAGS='-Wall -Wextra -Wpedantic -Werror'
    works 'builds them' cmake --build cmake
    works 'a program by cmake' cmake/own_dataset
    cp "$work/out" cmake.out
else
    echo '# skipped: no cmake: make deps test'
fi
works 'make' make CFLAGS='-std=c11 -O2 -Wall -Wextra -Wpedantic -Werror'

falls() { # falls NAME BELOW: the losses in the last output, "loss 1.234", end below BELOW times the first
    sed -n 's/.*loss \([0-9.]*\).*/\1/p' "$work/out" |
        awk -v below="$2" 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR > 1 && last < below * first) }'
    tap $? "$1" "$work/out"
}

accuracy() { # accuracy NAME LEAST: the last output's last accuracy
    sed -n 's/.*accuracy \([0-9.]*\)$/\1/p' "$work/out" |
        awk -v least="$2" '{ last = $1 } END { exit !(NR > 0 && last >= least) }'
    tap $? "$1" "$work/out"
}

works 'mlp_csv' ./mlp_csv
falls 'its loss falls' 0.9
accuracy 'it tells the rings apart' 0.9
works 'mlp_csv with a file and a column' ./mlp_csv rings.csv ring
fails 'mlp_csv without that column' 1 'rings\.csv.*length' ./mlp_csv rings.csv length
works 'own_dataset' ./own_dataset
falls 'its loss falls' 0.5
[ ! -e cmake.out ] || same 'as the one by cmake' cmake.out "$work/out"
works 'cnn_own --check' ./cnn_own --check
says 'mish has the right gradient' '^gradcheck: ok$'
works 'cnn_own' ./cnn_own
falls 'its loss falls' 0.7
accuracy 'it learns' 0.35
works 'two_ranks' ./two_ranks
falls 'its loss falls' 0.8
[ "$(grep -c 'loss' "$work/out")" -eq 10 ]
tap $? 'only one rank prints' "$work/out"

fails 'predict_pytorch says how to make its file' 2 'safetensors\.torch\.save_file' ./predict_pytorch
"$worker" resnet18 1000 net.safetensors
works 'predict_pytorch' ./predict_pytorch net.safetensors "$picture"
cp "$work/out" own.out
works 'predict' "$work/inst/bin/predict" --arch resnet18 --top 5 net.safetensors "$picture"
sed -n "s|^  \( .*%\)|\1|p" "$work/out" >tool.out
same 'answers the same' own.out tool.out
"$worker" resnet34 1000 other.safetensors
fails 'predict_pytorch, another model' 1 'other\.safetensors' ./predict_pytorch other.safetensors "$picture"
done_testing
