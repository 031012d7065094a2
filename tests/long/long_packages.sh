#!/usr/bin/env bash
# Debian's packages in an empty system of the same release (debootstrap): apt installs them, and an ordinary user
# trains, predicts, draws, and builds a program of their own, without the source. Then what the Dockerfile
# says, in another one.
. "$(dirname "$0")/../help/tap.sh"
build=${BUILD:-build/cc}
for tool in debootstrap dpkg-deb unshare; do
    command -v $tool >/dev/null || skip_all 'packages in an empty system' "$tool is not installed"
done
[ "$(id -u)" = 0 ] || skip_all 'packages in an empty system' 'debootstrap and chroot need root'
CC=${build#build/}
export CC=${CC%-nocuda}
[[ $build != *-nocuda ]] || export CUDA=0
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(sed -n 's/^ *\(deb \(\[[^]]*\] \)\?\|URIs: \)\(http[^ ]*\).*/\3/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)

works 'make deb' make --no-print-directory deb
works "an empty $release" debootstrap --variant=minbase --include=ca-certificates "$release" "$work/base" "${mirror:-http://deb.debian.org/debian}"
cp /etc/resolv.conf "$work/base/etc/"
cp /etc/apt/apt.conf.d/*proxy* "$work/base/etc/apt/apt.conf.d/" 2>/dev/null

inside() { # inside ROOT COMMAND: by sh, with /proc and /dev of its own
    # shellcheck disable=SC2016
    unshare --mount --pid --fork sh -c 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" &&
        exec chroot "$0" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive sh -ec "$1"' "$1" "$2"
}
root=$work/installed
cp -a "$work/base" "$root"
mkdir "$root/debs"
cp build/deb/*.deb "$root/debs"
works 'apt install' inside "$root" 'apt-get update && apt-get install -y --no-install-recommends /debs/tandem-tools*.deb /debs/libtandem*.deb gcc libc6-dev pkg-config gnuplot-nox'
mkdir -p "$root/photos"/{cat,dog}
for i in 1 2 3 4; do
    cp tests/pictures/rgb.bmp "$root/photos/cat/$i.bmp"
    cp tests/pictures/palette.gif "$root/photos/dog/$i.gif"
done
works 'an ordinary user' inside "$root" 'useradd -m user'
user() { inside "$root" "cd /home/user && exec setpriv --reuid user --regid user --clear-groups env HOME=/home/user sh -ec '$1'"; }
works 'trains' user 'train_net --cfg resnet18 TRAIN.DATASET /photos DATA.VAL_FRACTION 0.5 TRAIN.BATCH_SIZE 2 TRAIN.IM_SIZE 32 TEST.IM_SIZE 36 TEST.CROP_SIZE 32 OPTIM.MAX_EPOCH 2 OPTIM.WARMUP_EPOCHS 0 OPTIM.BASE_LR 0.001 OUT_DIR exp'
works 'on two ranks' user 'tdrun --nproc-per-node 2 cifar_resnet18 --limit 64 --batch-size 32 --epochs 1'
works 'predicts' user 'tandem-predict exp/best /photos/dog/1.gif'
says '  by name' ' % +(cat|dog)$'
works 'draws' user 'plot_runs --out run.png exp && test -s run.png'
works 'builds a program of their own' user 'cp /usr/share/doc/libtandem-dev/examples/own_dataset.c . && cc own_dataset.c -o own $(pkg-config --cflags --libs tandem) && ./own'

root=$work/container
mv "$work/base" "$root"
mkdir "$root/tandem"
git archive HEAD 2>/dev/null | tar -x -C "$root/tandem"
sed -n 's/^RUN //p' Dockerfile | while read -r line; do
    works "Dockerfile: $line" inside "$root" "$line"
    echo "$tap_number $tap_failures" >"$work/count"
done
read -r tap_number tap_failures <"$work/count"
works 'Dockerfile: what it starts' inside "$root" "$(sed -n 's/^CMD //p' Dockerfile | tr -d '[],"')"
done_testing
