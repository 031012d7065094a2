#!/usr/bin/env bash
# Variables TANDEM_... of the environment: those that the product reads are known to it and stand in
# docs/environment.md, and no others do; a misspelt one gets a line.
. "$(dirname "$0")/../help/tap.sh"
rooms='tensor autograd nn data dist apps'
# shellcheck disable=SC2086
grep -rhoE '(env|getenv|setenv|env_int)\("TANDEM_[A-Z_]+"' --include='*.c' --include='*.cc' $rooms | grep -oE 'TANDEM_[A-Z_]+' | sort -u >"$work/read"
sed -n '/names\[\]/,/};/p' tensor/system/environment.c | grep -oE 'TANDEM_[A-Z0-9_]+' | sort -u >"$work/known"
grep -oE '`TANDEM_[A-Z0-9_]+`' docs/environment.md | grep -oE 'TANDEM_[A-Z0-9_]*[A-Z0-9]' | sort -u >"$work/told"
comm -23 "$work/read" "$work/known" >"$work/out"
[ -s "$work/read" ] && [ ! -s "$work/out" ]
tap $? 'what is read is known' "$work/out"
comm -23 "$work/known" "$work/told" >"$work/out"
[ ! -s "$work/out" ]
tap $? 'what is known has its row' "$work/out"

unset RANK WORLD_SIZE LOCAL_RANK
cd "$work" || exit 1
works 'a misspelt name' env TANDEM_DEVCIE=cpu TANDEM_TEST_X=1 "$apps/wine_single"
says '  has a line' '^tandem: TANDEM_DEVCIE in the environment is unknown; the nearest name is TANDEM_DEVICE$'
[ "$(grep -c 'in the environment is unknown' out)" -eq 1 ]
tap $? '  once, and no other does' out
works 'the second process of a host' env LOCAL_RANK=1 TANDEM_DEVCIE=cpu "$apps/wine_single"
! grep -q 'is unknown' out
tap $? '  says nothing' out
done_testing
