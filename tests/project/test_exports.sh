#!/usr/bin/env bash
# libtandem.so exports what the public headers declare, those with TD_BEGIN_C, and nothing else.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
library=$(find "${BUILD:-build/cc}" -maxdepth 1 -name 'libtandem.so.*')
[ -n "$library" ] || skip_all 'exports' 'this build has no shared library'
# shellcheck disable=SC2046 # no name has a space
works 'the headers can be read' python3 -c 'import sys
sys.path.insert(0, "scripts")
import sizes
declared = sizes.public_functions(*sys.argv[1:]).values()
print("\n".join(sorted(name for names in declared for name in names)))
' $(grep -rl --include='*.h' '^TD_BEGIN_C' tensor autograd nn data dist apps)
cp "$work/out" "$work/declared"
nm -D --defined-only "$library" | awk '$2 ~ /[TW]/ { print $3 }' | sed 's/@.*//' | sort >"$work/exported"
[ "$(wc -l <"$work/declared")" -ge 300 ]
tap $? 'there are some hundreds'
same 'they are the exported ones' "$work/declared" "$work/exported"
diff "$work/declared" "$work/exported" | sed -n 's/^</# declared, not exported: /p; s/^>/# exported, not declared: /p'
others=$(nm -D --defined-only "$library" | awk '$2 !~ /[TWA]/ { print $3 }' | sed 's/@.*//' | while read -r name; do
    grep -rqE --include='*.h' "^extern .*\<$name\>" tensor autograd nn data dist apps || echo "$name"
done)
echo "$others" >"$work/out"
[ -z "$others" ]
tap $? 'exported variables are declared, too' "$work/out"
done_testing
