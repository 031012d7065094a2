#!/usr/bin/env bash
# Where the libraries of gloo and MPI are looked for: not where everybody may write.
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_LIB_PATH
mkdir "$work/public" "$work/public/bin" "$work/public/lib"
chmod 1777 "$work/public" "$work/public/lib"
cp "$apps/group_basics" "$work/public/bin/"
echo 'no library' >"$work/public/libtandem-gloo.so"
cp "$work/public/libtandem-gloo.so" "$work/public/lib/"
try() { env TANDEM_BACKEND=gloo timeout 60 "$work/public/bin/group_basics" 0 1 "file://$work/meet" >"$work/out" 2>&1; }
try
! grep -q 'cannot be loaded' "$work/out"
tap $? 'a folder that all may write to is left alone' "$work/out"
chmod 755 "$work/public"
try
says 'another folder above the program is not' 'it is there and cannot be loaded'
done_testing
