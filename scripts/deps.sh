#!/bin/sh
# Installs the packages that tandem uses (Debian, Ubuntu), or prints their names.
# usage: scripts/deps.sh install | install-dev | install-bench | install-bench-newest
set -eu
kind=${1:?usage: scripts/deps.sh install|install-dev|install-bench|install-bench-newest}

case $kind in
install)
    debian='gcc g++ libc6-dev make pkg-config libcjson-dev libcurl4-openssl-dev libarchive-dev libmd-dev libcmocka-dev libstb-dev libjpeg-dev libyaml-dev libgloo-dev libopenmpi-dev openmpi-bin slurm-wlm iproute2 procps python3'
    fedora='gcc gcc-c++ make pkgconf cjson-devel libcurl-devel libarchive-devel libmd-devel libcmocka-devel stb_image-devel libjpeg-turbo-devel libyaml-devel gloo-devel openmpi-devel python3'
    arch='gcc make pkgconf cjson curl libarchive libmd cmocka stb libjpeg-turbo libyaml openmpi python'
    alpine='gcc g++ musl-dev make pkgconf cjson-dev curl-dev libarchive-dev libmd-dev cmocka-dev stb libjpeg-turbo-dev yaml-dev openmpi-dev openmpi python3 argp-standalone'
    brew='pkgconf cjson curl libarchive libmd cmocka jpeg-turbo libyaml argp-standalone open-mpi python'
    ;;
install-dev)
    debian='clang clang-format clang-tidy gnuplot-nox doxygen'
    fedora='clang clang-tools-extra gnuplot-minimal doxygen'
    arch='clang gnuplot doxygen'
    alpine='clang clang-extra-tools compiler-rt gnuplot doxygen'
    brew='llvm gnuplot doxygen'
    ;;
install-bench)
    debian='python3-torch python3-torchvision libtcmalloc-minimal4 libdnnl-dev'
    fedora='python3-torch python3-torchvision onednn-devel'
    arch='python-pytorch python-torchvision onednn'
    alpine='py3-pytorch onednn-dev'
    brew='pytorch torchvision onednn'
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

by_hand() { # by_hand COMMAND...
    echo "tandem uses these packages; install them with"
    echo
    echo "    $*"
    echo
}

installed() { # whether dpkg has them all
    for package in $debian; do
        status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) || return 1
        [ "$status" = 'install ok installed' ] || return 1
    done
}

if command -v apt-get >/dev/null 2>&1; then
    if installed; then
        echo "deps: all there ($debian)"
        exit 0
    fi
    sudo=
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            by_hand "apt-get install $debian      (as root)"
            exit 1
        fi
        sudo=sudo
    fi
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    if ! $sudo apt-get install -y --no-install-recommends $debian; then
        $sudo apt-get update
        $sudo apt-get install -y --no-install-recommends $debian
    fi
elif command -v dnf >/dev/null 2>&1; then
    by_hand "sudo dnf install $fedora"
elif command -v pacman >/dev/null 2>&1; then
    by_hand "sudo pacman -S --needed $arch"
elif command -v apk >/dev/null 2>&1; then
    by_hand "sudo apk add $alpine"
elif command -v brew >/dev/null 2>&1; then
    by_hand "brew install $brew"
else
    echo "tandem uses these packages (Debian's names): $debian"
fi
