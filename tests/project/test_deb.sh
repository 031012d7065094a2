#!/usr/bin/env bash
# make deb: the three packages, unpacked into an empty folder: the programs run from there and find what
# belongs to them; programs in C and C++ are built against it by pkg-config and by CMake.
# (long_packages.sh installs them with apt into an empty system.)
# run: plain
. "$(dirname "$0")/../help/tap.sh"
build=${BUILD:-build/cc}
[[ $build != *-emulated* ]] || skip_all 'make deb' 'an emulated GPU is not for use'
command -v dpkg-deb >/dev/null || skip_all 'make deb' 'dpkg-deb is not installed: this is no Debian'
command -v pkg-config >/dev/null || skip_all 'make deb' 'pkg-config is not installed: make deps'
CC=${build#build/}
export CC=${CC%-nocuda}
[[ $build != *-nocuda ]] || export CUDA=0

works 'make deb' env LEVEL=0 make --no-print-directory deb
root=$work/root
for name in libtandem0 libtandem-dev tandem-tools; do
    works "$name" dpkg-deb -x build/deb/${name}_*.deb "$root"
    dpkg-deb -f build/deb/${name}_*.deb >"$work/out"
    says '  its version' '^Version: [0-9.]+-1$'
    says '  what it needs' '^Depends: .*lib'
done
cd "$work" || exit 1
bin=$root/usr/bin share=$root/usr/share
for tool in tdrun train_net test_net cifar_resnet18 plot_runs tandem-predict tandem-gpt tandem-tokenize tandem-compare tandem-report; do
    works "$tool" "$bin/$tool" --help
    gzip -dc "$share/man/man1/$tool.1.gz" >page
    grep -oE '(^| )--[a-z][a-z-]*' out | tr -d ' ' | sort -u >options
    sed 's/\\-/-/g' page | grep -oE -- '--[a-z][a-z-]*' | sort -u >named
    [ -s page ] && [ -z "$(comm -23 options named)" ]
    tap $? "  its manual page has its options" options
    bash -c ". '$share/bash-completion/completions/$tool' && complete -p $tool" >completed 2>&1
    tap $? '  its completion' completed
done
[ -z "$(objdump -h "$bin/train_net" | grep debug_info)" ]
tap $? 'programs are stripped'
works 'a configuration by its name' "$bin/train_net" --cfg resnet50 --keys
says '  is that one' '^  ARCH: resnet50$'
fails 'none of that name' 1 'resnet51: cannot be opened' "$bin/train_net" --cfg resnet51 --keys
mkdir -p photos/{cat,dog}
for i in 1 2 3 4; do
    cp "$OLDPWD/tests/pictures/rgb.bmp" photos/cat/$i.bmp
    cp "$OLDPWD/tests/pictures/palette.gif" photos/dog/$i.gif
done
works 'training on a folder of BMPs and GIFs' "$bin/train_net" --cfg resnet18 TRAIN.DATASET photos DATA.VAL_FRACTION 0.5 \
    TRAIN.BATCH_SIZE 2 TRAIN.IM_SIZE 32 TEST.IM_SIZE 36 TEST.CROP_SIZE 32 OPTIM.MAX_EPOCH 1 OPTIM.WARMUP_EPOCHS 0 OPTIM.BASE_LR 0.001 RNG_SEED 1
says '  of as many classes as there are folders' 'resnet18, 2 classes'
works 'predicting' "$bin/tandem-predict" exp/best photos/dog/1.gif
says '  by name' ' % +(cat|dog)$'

# Programs of one's own. (As in /usr, but for where it is.)
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$root" -name tandem.pc)")
sed -i "s|=/usr|=$root/usr|" "$PKG_CONFIG_PATH/tandem.pc"
export LD_LIBRARY_PATH=${PKG_CONFIG_PATH%/pkgconfig}
cat >own.c <<'END'
#include <tandem.h>
#include <stdio.h>

int main(void)
{
    td_dataset *train, *test;
    if (td_wine_split("data/wine.csv", 0.2, 0, &train, &test, NULL) != TD_OK) {
        td_die();
    }
    printf("wine: %lld samples\n", (long long)train->length);
    td_dataset_free(train);
    td_dataset_free(test);
    return td_finish();
}
END
# shellcheck disable=SC2046
works 'in C by pkg-config' "$CC" -std=c11 -Wall -Wextra -Werror -o own own.c $(pkg-config --cflags --libs tandem)
works '  runs, and finds wine.csv' ./own
says '  142 samples' '^wine: 142 samples$'
if command -v g++ >/dev/null; then
    # shellcheck disable=SC2046
    works 'in C++ by pkg-config' g++ -std=c++17 -Wall -Wextra -Werror -o plus -x c++ own.c -x none $(pkg-config --cflags --libs tandem)
    works '  runs' ./plus
fi
if command -v cmake >/dev/null; then
    mkdir cmake
    cp own.c cmake/own.c
    cp own.c cmake/plus.cc
    cat >cmake/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.13)
project(own C CXX)
find_package(PkgConfig REQUIRED)
pkg_check_modules(tandem REQUIRED IMPORTED_TARGET tandem)
foreach(name own.c plus.cc)
    add_executable(${name}.out ${name})
    target_link_libraries(${name}.out PkgConfig::tandem)
endforeach()
END
    works 'both by CMake' sh -c 'cmake -S cmake -B cmade && cmake --build cmade'
    works '  C runs' cmade/own.c.out
    works '  C++ runs' cmade/plus.cc.out
fi
done_testing
