#!/usr/bin/env bash
# The words of scripts/words.py: a new place fails, in comments, messages and documents; code and names do not count.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
works 'the words of this tree' python3 scripts/words.py
mkdir -p "$work/tree/docs" "$work/tree/tensor"
cp -a scripts "$work/tree"
cd "$work/tree" || exit 1
sed -i 's/, [0-9]*),$/, 0),/' scripts/words.py
clean() { # clean NAME
    works "$1" python3 scripts/words.py
    says '  and says so' '^ok    words$'
}
finds() { # finds NAME N: the check fails, and shows the places of word N
    ! python3 scripts/words.py "$2" >"$work/out" 2>&1
    tap $? "$1" "$work/out"
}
echo 'An image.' >README.md
clean 'nothing wrong'
printf '#include "pictures.h"\nint picture = '"'\"'"'; int nobody;\n' >tensor/a.c
printf '`picture`\n```\nnobody\n```\n' >docs/a.md
clean 'names, includes and code in documents'
for line in '/* nobody waits */' 'const char *s = "nobody waits";' '/* a\n * nobody waits */'; do
    printf '%b\n' "$line" >tensor/a.c
    finds "$line" 2
    says '  with its place' '^tensor/a.c:[12]: .*nobody waits'
done
rm tensor/a.c
echo 'A rank beside another.' >docs/a.md
finds 'a document' 3
says '  is counted' "^FAIL  words: 1 places with 'beside', 0 allowed"
done_testing
