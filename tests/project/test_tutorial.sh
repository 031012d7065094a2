#!/usr/bin/env bash
# docs/tutorial: its commands run and print what the page shows, and its diffs are those of the lessons
# as they are. A block ```text behind a block ```sh is the output, every line; `...` is any lines. A block
# ```diff without names is a piece of the whole diff, which the page shows or names (<!--diff OLD NEW -->); a block
# ```bash FILE is that file.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
repository=$PWD
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
mkdir "$work/here"
mkdir "$work/here/apps"
find "$apps" -maxdepth 1 -type f -executable -exec ln -s -t "$work/here/apps" {} +
ln -s "$repository/apps/tools" "$work/here/apps/"
ln -s "$repository/tests" "$work/here/tests"
ln -s "$repository/data" "$work/here/data"
ln -s "$repository/docs" "$work/here/docs"

block() { # block FILE FENCE [NUMBER]: what stands between a line "```FENCE" and "```"; the first such block
    awk -v fence="\`\`\`$2" -v number="${3:-1}" \
        '$0 == fence { on = ++count == number; next } $0 == "```" { on = 0 } on' "$1"
}

for page in docs/tutorial/[1-9]*-*.md; do
    name=$(basename "$page" .md)
    for ((i = 1; i <= $(grep -c '^```sh$' "$page"); i++)); do
        block "$page" sh "$i" >"$work/commands"
        works "$name: its commands ($i)" bash -ec "cd '$work/here'; $(cat "$work/commands")"
        if [ -n "$(python3 tests/project/compare_output.py --shown "$page" "$i")" ]; then
            mv "$work/out" "$work/printed"
            works "$name: what they print ($i)" python3 tests/project/compare_output.py "$page" "$i" "$work/printed"
        fi
    done
    if read -r mark old new _ < <(grep -E '^(```|<!--)diff ' "$page"); then
        diff -U1 "apps/$old.c" "apps/$new.c" | tail -n +3 >"$work/is"
        if [ "$mark" = '```diff' ]; then
            block "$page" "diff $old $new" >"$work/said"
            same "$name: its diff of $old and $new" "$work/said" "$work/is"
        fi
        for ((i = 1; i <= $(grep -c '^```diff$' "$page"); i++)); do
            [[ "$(<"$work/is")" == *"$(block "$page" diff "$i")"* ]]
            tap $? "$name: piece $i is in its diff"
        done
    fi
    if read -r _ file < <(grep '^```bash ' "$page"); then
        block "$page" "bash $file" >"$work/said"
        same "$name: it shows $file" "$work/said" "$file"
    fi
done
same 'the picture of schedules' docs/tutorial/schedules.svg "$work/here/out/schedules.svg"
works 'the picture of the timeline' python3 docs/tutorial/draw_trace.py "$work/here/trace.json" \
    "$work/trace.svg"
says_svg=$(grep -c '<rect' "$work/trace.svg")
test "$says_svg" -gt 12
tap $? "it has its spans ($says_svg)"
fails 'a step that the run did not have' 1 'there is no step 99 in .*: it has [0-9]+, counted from 0$' \
    python3 docs/tutorial/draw_trace.py "$work/here/trace.json" "$work/trace.svg" 99
works 'the picture of the ring' bash -c '"$1" 3 1 | python3 docs/tutorial/draw_ring.py "$2"' - \
    "$apps/ring_allreduce" "$work/ring.svg"
test "$(grep -c '<rect x=' "$work/ring.svg")" -eq 45
tap $? 'it has 3 chunks of 3 ranks, at the start and after 4 rounds'
works 'the picture of sharding' bash -c '{ "$1" 2 none; "$1" 2 parameters; } | python3 docs/tutorial/draw_shard.py "$2"' - \
    "$apps/shard_memory" "$work/shard.svg"
test "$(grep -c '<rect x=.*<title>' "$work/shard.svg")" -eq 144
tap $? 'it has three parts at 24 moments of two steps'
fails 'a picture of no step' 1 'no moments of a step' python3 docs/tutorial/draw_shard.py "$work/shard.svg"
fails 'a picture of nothing' 1 'no rounds in the input' python3 docs/tutorial/draw_ring.py "$work/ring.svg"
done_testing
