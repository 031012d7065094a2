#!/bin/sh
# Installs the packages that tandem uses (Debian, Ubuntu), or prints their names.
# usage: scripts/deps.sh install | install-test | install-dev | install-cross | install-bench | install-bench-newest
set -eu
kind=${1:?usage: scripts/deps.sh install|install-test|install-dev|install-cross|install-bench|install-bench-newest}

# Without these nothing is built; the rest brings features.
debian_core='gcc make libcjson-dev'
fedora_core='gcc make cjson-devel'
arch_core='gcc make cjson'
alpine_core='gcc musl-dev linux-headers make cjson-dev argp-standalone'

case $kind in
install | install-test)
    debian='g++ libc6-dev pkg-config libcurl4-openssl-dev libarchive-dev libmd-dev libpng-dev libjpeg-dev libstb-dev libyaml-dev libpcre2-dev libgloo-dev gnuplot-nox'
    fedora='gcc-c++ pkgconf libcurl-devel libarchive-devel libmd-devel libpng-devel libjpeg-turbo-devel stb_image-devel libyaml-devel pcre2-devel gloo-devel gnuplot-minimal'
    arch='pkgconf curl libarchive libmd libpng libjpeg-turbo stb libyaml pcre2 gnuplot'
    alpine='g++ pkgconf curl-dev libarchive-dev libmd-dev libpng-dev libjpeg-turbo-dev stb yaml-dev pcre2-dev gnuplot'
    ;;
install-dev)
    debian='clang clang-format clang-tidy doxygen mkdocs'
    fedora='clang clang-tools-extra doxygen mkdocs'
    arch='clang doxygen mkdocs'
    alpine='clang clang-extra-tools compiler-rt doxygen'
    ;;
install-cross)
    # Debian's libraries of AArch64 lie beside this machine's; their list is fetched once.
    debian='gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libcjson-dev:arm64 libcmocka-dev:arm64'
    fedora='gcc-aarch64-linux-gnu qemu-user'
    arch='aarch64-linux-gnu-gcc qemu-user'
    alpine='qemu-aarch64'
    ;;
install-bench)
    debian='python3-torch python3-torchvision libtcmalloc-minimal4 libdnnl-dev'
    fedora='python3-torch python3-torchvision onednn-devel'
    arch='python-pytorch python-torchvision onednn'
    alpine='py3-pytorch onednn-dev'
    ;;
install-bench-newest)
    # PyPI has PyTorch for Linux with CUDA only, and it does not start without CUDA's libraries.
    python3 -m venv build/venv
    exec build/venv/bin/pip install torch torchvision
    ;;
*)
    echo "deps.sh: unknown: $kind" >&2
    exit 2
    ;;
esac
case $kind in
install-test)
    debian="$debian cmake libcmocka-dev libopenmpi-dev openmpi-bin slurm-wlm libonnx-testdata iproute2 procps python3"
    fedora="$fedora cmake libcmocka-devel openmpi-devel python3"
    arch="$arch cmake cmocka openmpi python"
    alpine="$alpine cmake cmocka-dev openmpi-dev openmpi python3"
    ;;
install) ;;
*) debian_core= fedora_core= arch_core= alpine_core= ;;
esac

by_hand() { # by_hand COMMAND CORE REST [NOTE]
    if [ -n "$2" ]; then
        printf 'tandem needs three things, a C compiler, make and cJSON%s:\n\n    %s %s\n\n' "${4:-}" "$1" "$2"
        printf 'and uses these packages where they are (make says what each of them brings):\n\n'
    else
        printf 'tandem uses these packages%s:\n\n' "${4:-}"
    fi
    printf '    %s %s\n\n' "$1" "$3"
}

installed() { # whether dpkg has them all
    for package in $debian_core $debian; do
        status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) || return 1
        [ "$status" = 'install ok installed' ] || return 1
    done
}

if command -v apt-get >/dev/null 2>&1; then
    if installed; then
        echo "deps: all there ($debian_core${debian_core:+ }$debian)"
        exit 0
    fi
    sudo=
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            by_hand 'apt-get install' "$debian_core" "$debian" ' (root installs them)'
            exit 1
        fi
        sudo=sudo
    fi
    # shellcheck disable=SC2086
    set -- $debian_core $debian
    echo "deps: $# packages by apt-get, whose lines follow"
    export DEBIAN_FRONTEND=noninteractive
    if [ "$kind" = install-cross ] && ! dpkg --print-foreign-architectures | grep -qx arm64; then
        $sudo dpkg --add-architecture arm64
        $sudo apt-get update
    fi
    # shellcheck disable=SC2086
    if ! $sudo apt-get install -y --no-install-recommends $debian_core $debian; then
        $sudo apt-get update
        $sudo apt-get install -y --no-install-recommends $debian_core $debian
    fi
elif command -v dnf >/dev/null 2>&1; then
    by_hand 'sudo dnf install' "$fedora_core" "$fedora"
elif command -v pacman >/dev/null 2>&1; then
    by_hand 'sudo pacman -S --needed' "$arch_core" "$arch"
elif command -v apk >/dev/null 2>&1; then
    by_hand 'sudo apk add' "$alpine_core" "$alpine"
else
    by_hand "(Debian's names)" "$debian_core" "$debian"
fi
