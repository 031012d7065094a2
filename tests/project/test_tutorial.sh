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

# Blocks that compute for long: in make test-long. What they show other tests have on smaller data.
slow=' 12-gpt:2 13-gpt-ddp:2 13-gpt-ddp:3 16-tensor:2 23-fine-tuning:1 '
for page in docs/tutorial/[1-9]*-*.md; do
    name=$(basename "$page" .md)
    for ((i = 1; i <= $(grep -c '^```sh$' "$page"); i++)); do
        [ -n "${TANDEM_LONG:-}" ] || [[ $slow != *" $name:$i "* ]] || continue
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
draw() { # draw NAME COMMAND PICTURE...: what docs/tutorial/draw_NAME.py makes of a command's output is what the pages show
    local name=$1 command=$2 file
    shift 2
    works "draw_$name" bash -ec "cd '$work/here'; $command | python3 docs/tutorial/draw_$name.py ${*/#/$work/}"
    for file in "$@"; do
        same "  $file" "docs/tutorial/$file" "$work/$file"
        python3 -c 'import sys, xml.etree.ElementTree as t; assert t.parse(sys.argv[1]).find("{*}desc").text' "$work/$file"
        tap $? "  it has a description"
    done
    fails "  of nothing" 1 "draw_$name.py: .*" bash -c ": | python3 docs/tutorial/draw_$name.py a.svg b.svg"
}
draw gradient apps/one_gradient gradient.svg
draw mean apps/mean_gradient mean.svg
draw ring 'apps/ring_allreduce 4 64' ring.svg
draw window apps/one_window window.svg
draw resnet 'apps/cifar_resnet18 --limit 32 --batch-size 16 --epochs 1 --summary' shapes.svg blocks.svg
draw keeps 'apps/shard_memory 4' keeps.svg
hosts='for host in 1 0; do apps/wine_ddp_multinode --nnodes 2 --node-rank $host 1 >host$host.txt & done; wait'
works 'two hosts' bash -ec "cd '$work/here'; $hosts"
works 'draw_hosts' python3 docs/tutorial/draw_hosts.py "$work/hosts.svg" 12355 "$work"/here/host[01].txt
same '  hosts.svg' docs/tutorial/hosts.svg "$work/hosts.svg"
fails '  of nothing' 1 'no \[init\] lines' python3 docs/tutorial/draw_hosts.py "$work/hosts.svg" 12355 /dev/null
works 'draw_trace' python3 docs/tutorial/draw_trace.py "$work/trace.svg" "DDP=$work/here/trace.json" \
    "one message=$work/here/after.json" "DataParallel@1=$work/here/dp.json"
for words in '>DDP: [0-9]* ms<' '>rank 1, messages<' '>device 1<' '<title>bucket 8 ' '<title>message 0: ' '>0 ms<'; do
    grep -q "$words" "$work/trace.svg"
    tap $? "  it has $words"
done
fails '  a step that the run did not have' 1 'there is no step 99 in .*: it has [0-9]+, counted from 0$' \
    python3 docs/tutorial/draw_trace.py "$work/trace.svg" "DDP@99=$work/here/trace.json"
works 'the picture of sharding' bash -c '{ "$1" 2 none; "$1" 2 parameters; } | python3 docs/tutorial/draw_shard.py "$2"' - \
    "$apps/shard_memory" "$work/shard.svg"
test "$(grep -c '<rect x=.*<title>' "$work/shard.svg")" -eq 144
tap $? 'it has three parts at 24 moments of two steps'
fails 'a picture of no step' 1 'no moments of a step' python3 docs/tutorial/draw_shard.py "$work/shard.svg"
done_testing
