#!/usr/bin/env bash
# The names of static functions of this tree (scripts/statics.py), and what the check finds.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
works 'the names of this tree' python3 scripts/statics.py
tree=$work/tree
mkdir -p "$tree/dist/comm" "$tree/dist/ddp"
one=$tree/dist/comm/one.c two=$tree/dist/ddp/two.c
shared() { # shared NAME: the check finds `take` in both files
    ! python3 scripts/statics.py "$tree" >"$work/out" 2>&1
    tap $? "$1" "$work/out"
    says '  with its files' '^take: dist/comm/one.c dist/ddp/two.c$'
}
apart() { # apart NAME
    works "$1" python3 scripts/statics.py "$tree"
    says '  and says so' '^ok    names of static functions$'
}
printf 'static int take(int x)\n{\n    return x;\n}\n' >"$one"
cp "$one" "$two"
shared 'a name in two files of a room'
for line in 'static int take(int x);' 'static inline struct a *\ntake(void)\n{' \
    'static __attribute__((noinline)) void take(int (*f)(void))\n{' 'static const char *const *take (void)\n{'; do
    printf '%b\n' "$line" >"$two"
    shared "${line%%$'\n'*}"
done
for line in 'int take(int x);' '/* static int take(int x); */' 'const char *s = "\\\nstatic int take(int x)";' \
    'static int take = 1;' 'static int (*take)(int x);' 'static int TAKE(take)(int x)' 'static int retake(int x);'; do
    printf '%b\n' "$line" >"$two"
    apart "${line%%$'\n'*}"
done
done_testing
