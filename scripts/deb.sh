#!/bin/sh
# Builds Debian's packages with dpkg-deb: libtandem0 (the shared library), libtandem-dev (headers, the static
# library, tandem.pc, examples) and tandem-tools (the programs, with their configurations and manual pages).
# usage: VERSION=... ABI=... MAKE=make scripts/deb.sh FOLDER
set -eu
out=$1
command -v dpkg-deb >/dev/null || { echo 'make deb: dpkg-deb is missing: this is for Debian and Ubuntu' >&2; exit 1; }
arch=$(dpkg --print-architecture)
where=usr/lib/$(${CC:-cc} -print-multiarch 2>/dev/null || dpkg-architecture -qDEB_HOST_MULTIARCH)
rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
all=$out/all lib=$out/libtandem0 dev=$out/libtandem-dev tools=$out/tandem-tools
$MAKE --no-print-directory install DESTDIR="$all" PREFIX=/usr LIBDIR="/$where" >/dev/null

put() { # put PACKAGE-FOLDER PATH...: moves them there
    to=$1
    shift
    for path; do
        mkdir -p "$to/$(dirname "$path")"
        mv "$all/$path" "$to/$(dirname "$path")"
    done
}

doc() { # doc PACKAGE: Debian wants a copyright file in each
    mkdir -p "$out/$1/usr/share/doc/$1"
    cp LICENSE "$out/$1/usr/share/doc/$1/copyright"
}

put "$lib" "$where/libtandem.so.$ABI"
for backend in gloo mpi; do
    [ ! -e "$all/$where/libtandem-$backend.so" ] || put "$lib" "$where/libtandem-$backend.so"
done
put "$dev" usr/include "$where/libtandem.a" "$where/libtandem.so" "$where/pkgconfig"
${STRIP:-strip} -g "$dev/$where/libtandem.a"
put "$tools" usr/bin usr/share
for package in libtandem0 libtandem-dev tandem-tools; do
    doc $package
done
mkdir -p "$dev/usr/share/doc/libtandem-dev/examples"
cp examples/*.c examples/Makefile examples/CMakeLists.txt "$dev/usr/share/doc/libtandem-dev/examples"

# Others have programs of these names (ImageMagick has compare).
for name in predict gpt tokenize compare report; do
    mv "$tools/usr/bin/$name" "$tools/usr/bin/tandem-$name"
    mv "$tools/usr/share/man/man1/$name.1" "$tools/usr/share/man/man1/tandem-$name.1"
    sed "s/ $name\$/ tandem-$name/" "$tools/usr/share/bash-completion/completions/$name" \
        >"$tools/usr/share/bash-completion/completions/tandem-$name"
    rm "$tools/usr/share/bash-completion/completions/$name"
done
gzip -9n "$tools"/usr/share/man/man1/*.1

needs() { # needs FILE...: the packages of the libraries that these files name, with the C library's version
    for file; do
        objdump -p "$file" | sed -n 's/^ *NEEDED *//p'
    done | sort -u | while read -r name; do
        path=$(/sbin/ldconfig -p | sed -n "s|^[[:space:]]*$name .*=> ||p" | head -n 1)
        [ -z "$path" ] || dpkg -S "$(realpath "$path")" 2>/dev/null | sed 's/:.*//'
    done | sort -u | while read -r package; do
        if [ "$package" = libc6 ]; then
            printf ', libc6 (>= %s)' "$(dpkg-query -W -f '${Version}' libc6 | sed 's/-.*//')"
        else
            printf ', %s' "$package"
        fi
    done | sed 's/^, //'
}

pack() { # pack PACKAGE SECTION DEPENDS RECOMMENDS SUMMARY TEXT
    mkdir -p "$out/$1/DEBIAN"
    {
        printf 'Package: %s\nVersion: %s-1\nArchitecture: %s\nMaintainer: tandem <tandem@localhost>\n' "$1" "$VERSION" "$arch"
        printf 'Section: %s\nPriority: optional\nInstalled-Size: %s\nDepends: %s\n' "$2" "$(du -sk "$out/$1" | cut -f 1)" "$3"
        [ -z "$4" ] || printf 'Recommends: %s\n' "$4"
        printf 'Description: %s\n %s\n' "$5" "$6"
    } >"$out/$1/DEBIAN/control"
    (cd "$out/$1" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
    chmod -R u+rwX,go+rX,go-w "$out/$1"
    dpkg-deb --root-owner-group -z"${LEVEL:-2}" -b "$out/$1" "$out/$1_$VERSION-1_$arch.deb"
}
headers=$(for h in cjson curl4-openssl archive md png jpeg yaml pcre2; do
    package=lib$h-dev
    dpkg-query -W -f '${Status}' $package 2>/dev/null | grep -q '^install ok installed' && printf ', %s' "$package"
done)
pack libtandem0 libs "$(needs "$lib/$where/libtandem.so.$ABI")" libgloo0 'deep learning in C: the shared library' \
    'Tensors, automatic differentiation, layers, optimizers, data and data parallelism.'
pack libtandem-dev libdevel "libtandem0 (= $VERSION-1)$headers" pkg-config 'deep learning in C: headers and examples' \
    'For programs of your own: cc app.c $(pkg-config --cflags --libs tandem).'
pack tandem-tools science "$(needs "$tools"/usr/bin/*)" 'libtandem0, gnuplot-nox' 'deep learning in C: programs' \
    'train_net, test_net, cifar_resnet18, tdrun, plot_runs; tandem-predict, -gpt, -tokenize, -compare, -report.'
rm -rf "$all" "$lib" "$dev" "$tools"
