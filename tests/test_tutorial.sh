#!/usr/bin/env bash
# docs/tutorial: its commands run, and its diffs are those of the lessons as they are.
. "$(dirname "$0")/tap.sh"
repository=$PWD
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
mkdir "$work/here"
mkdir "$work/here/apps"
ln -s "$apps"/* "$repository/apps/config" "$work/here/apps/"
ln -s "$repository/tests" "$work/here/tests"
ln -s "$repository/data" "$work/here/data"

block() { # block FILE FENCE: what stands between a line "```FENCE" and "```"
    awk -v fence="\`\`\`$2" '$0 == fence { on = 1; next } $0 == "```" { on = 0 } on' "$1"
}

for page in docs/tutorial/[1-9]*-*.md; do
    name=$(basename "$page" .md)
    block "$page" sh >"$work/commands"
    if [ -s "$work/commands" ]; then
        works "$name: its commands" bash -ec "cd '$work/here'; $(cat "$work/commands")"
    fi
    if read -r _ old new < <(grep '^```diff ' "$page"); then
        block "$page" "diff $old $new" >"$work/said"
        diff -U1 "apps/$old.c" "apps/$new.c" | tail -n +3 >"$work/is"
        same "$name: its diff of $old and $new" "$work/said" "$work/is"
    fi
done
works 'the picture of the timeline' python3 docs/tutorial/draw_trace.py "$work/here/trace.json" \
    "$work/trace.svg"
says_svg=$(grep -c '<rect' "$work/trace.svg")
test "$says_svg" -gt 12
tap $? "it has its spans ($says_svg)"
fails 'a step that the run did not have' 1 'there is no step 99 in .*: it has [0-9]+, counted from 0$' \
    python3 docs/tutorial/draw_trace.py "$work/here/trace.json" "$work/trace.svg" 99
done_testing
