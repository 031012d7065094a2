#!/usr/bin/env bash
# make install and uninstall: what a user has who knows only the prefix. A program by pkg-config, against
# either library, in C and in C++; a shared object that Python loads; the tools; and nothing left behind.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
build=${BUILD:-build/cc}
[[ $build != *-emulated* ]] || skip_all 'make install' 'an emulated GPU is not for use'
command -v pkg-config >/dev/null || skip_all 'make install' 'pkg-config is not installed: make deps'
prefix="$work/a prefix"
unset PKG_CONFIG_PATH
CC=${build#build/}
export CC=${CC%-nocuda}
[[ $build != *-nocuda ]] || export CUDA=0

works 'make install' make --no-print-directory install PREFIX="$work/inst"
export PKG_CONFIG_PATH=$work/inst/lib/pkgconfig
says 'it says what pkg-config needs' "^first: export PKG_CONFIG_PATH=\"$PKG_CONFIG_PATH"
works 'make install again' make --no-print-directory install PREFIX="$work/inst"
! grep -q '^first:' "$work/out"
tap $? 'which it does not say where it is set' "$work/out"
works 'make install with DESTDIR, a space in it' make --no-print-directory install DESTDIR="$prefix" PREFIX=/opt/tandem
[ "$(cd "$prefix/opt/tandem" && find . | sort)" = "$(cd "$work/inst" && find . | sort)" ]
tap $? 'the same files'

cat >"$work/app.c" <<'END'
#include <tandem.h>
#include <stdio.h>

const char *greeting(void)
{
    static char text[64];
    const int64_t at[] = { 0, 0 };
    td_manual_seed(0);
    td_tensor *t = td_zeros(TD_SHAPE(2, 3), TD_F32, TD_CPU);
    td_uniform_(t, 0, 1, td_default_generator());
    snprintf(text, sizeof text, "%.4f", td_get(t, at));
    td_free(t);
    return text;
}

int main(void)
{
    puts(greeting());
    return 0;
}
END
cd "$work" || exit 1
flags=$(pkg-config --cflags --libs tandem)
# shellcheck disable=SC2086
works 'a program by pkg-config' $CC -o app app.c $flags
works 'starts, with no path set' ./app
cp out first
says 'and computes' '^0\.[0-9]{4}$'
# shellcheck disable=SC2086
works 'a program with the static library' $CC -o static app.c ${flags/-ltandem/inst/lib/libtandem.a}
works 'starts' ./static
same 'the same' first out
if command -v g++ >/dev/null; then
    for header in $(cd inst/include/tandem && find . -name '*.h' | sort); do
        g++ -std=c++17 -fsyntax-only -Wall -Wextra -Werror -Iinst/include/tandem -include "$header" -x c++ /dev/null 2>&1
    done >out
    [ ! -s out ]
    tap $? 'every header is C++17, alone' out
    # shellcheck disable=SC2086
    works 'the program as C++17' g++ -std=c++17 -Wall -Wextra -Werror -o plus -x c++ app.c -x none $flags
    works 'starts' ./plus
    same 'the same' first out
else
    echo '# skipped: g++ is not installed'
fi
if [ -e inst/lib/libtandem.so ]; then
    readelf -d app >out
    says 'the program asks for a version' 'NEEDED.*\[libtandem\.so\.[0-9]+\.[0-9]+\]'
    [ -z "$(nm -D --defined-only inst/lib/libtandem.so | awk '$3 !~ /^td_/')" ]
    tap $? 'libtandem.so shows nothing but td_'
    # shellcheck disable=SC2086
    works 'a shared object' $CC -fPIC -shared -o plugin.so app.c $flags
    # shellcheck disable=SC2086
    works 'one with the static library in it' $CC -fPIC -shared -o whole.so app.c ${flags/-ltandem/inst/lib/libtandem.a}
    for object in plugin whole; do
        works "Python loads $object.so" python3 -c "
import ctypes
plugin = ctypes.CDLL('./$object.so')
plugin.greeting.restype = ctypes.c_char_p
print(plugin.greeting().decode())"
        same 'and gets the same' first out
    done
else
    echo '# skipped: no libtandem.so here'
fi
for tool in train_net test_net predict tokenize compare plot_runs cifar_resnet18; do
    works "$tool" "inst/bin/$tool" --help
done
works 'tdrun starts two' inst/bin/tdrun --nproc-per-node 2 sh -c 'echo rank $RANK'
says 'both' '^.*rank 1$'

cd "$OLDPWD" || exit 1
works 'make uninstall' make --no-print-directory uninstall PREFIX="$work/inst"
[ -z "$(find "$work/inst" ! -type d)" ]
tap $? 'leaves no file'
fails 'make docs without doxygen' 2 'doxygen is missing: make deps-dev' env -u TESTS -u MAKEFLAGS PATH="$work/bin" "$(command -v make)" docs SHELL=/bin/sh
done_testing
