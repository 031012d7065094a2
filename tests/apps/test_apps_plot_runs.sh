#!/usr/bin/env bash
# plot_runs: pictures of one run and of several, and what it refuses.
. "$(dirname "$0")/../help/tap.sh"
app=$apps/plot_runs
head='step,train/loss,train/epoch_loss,train/epoch_accuracy,lr,images_per_second,test/loss,test/accuracy'

run() { # run FOLDER LR: 40 steps, tested after every tenth
    mkdir -p "$work/$1"
    awk -v head="$head" -v lr="$2" 'BEGIN {
        print head
        for (i = 1; i <= 40; i++) {
            printf "%d,%.4f,%.4f,%.4f,%g,%d,,\n", i, 2 / i, 2.5 / i, i / 40, lr, 900 + i
            if (i % 10 == 0) printf "%d,,,,,,%.4f,%.4f\n", i, 3 / i, i / 50
        }
    }' >"$work/$1/metrics.csv"
}
run first 0.1
run second 0.05
mkdir "$work/wine"
printf 'step,loss,epoch_loss,lr\n1,1.5,1.5,0.1\n2,1.2,1.3,0.1\n' >"$work/wine/metrics.csv"

# A gnuplot that writes down what it is asked to draw.
mkdir "$work/bin"
cat >"$work/bin/gnuplot" <<'FAKE'
#!/bin/sh
cp "$1" "$SCRIPT"
FAKE
chmod +x "$work/bin/gnuplot"
export SCRIPT=$work/script
drawn() { PATH=$work/bin:$PATH "$app" "$@"; }

works 'one run' drawn --out "$work/one.svg" "$work/first"
says 'the picture' "^$work/one.svg\$"
cp "$SCRIPT" "$work/out"
tap "$(($(grep -c '^plot ' "$SCRIPT") - 4))" 'four panels' "$SCRIPT"
says 'the last loss' '^40 0\.05$'
says 'the last test, in percent' '^40 80$'
says 'the tests in a style of their own' 'linespoints.*test'
says 'a loss from 2 to 0.05 on a linear scale' '^unset logscale y$'
! grep -q '^set logscale' "$SCRIPT" && grep -qx 'set yrange \[0:100\]' "$SCRIPT"
tap $? 'accuracy from 0 to 100' "$SCRIPT"
says 'an SVG' '^set terminal svg .*size 1120,720'
tap "$(($(grep -c '<< END' "$SCRIPT") - 6))" 'six curves' "$SCRIPT"
works 'two runs' drawn --out "$work/two.png" "$work/first" "$work/second"
cp "$SCRIPT" "$work/out"
says 'a PNG' '^set terminal pngcairo'
says 'both, by their names' "title 'second: test'"
says 'of different rates' '^1 0\.05$'
works 'runs of one name' drawn --out "$work/two.png" "$work/first" "$work/bin/../first"
cp "$SCRIPT" "$work/out"
says 'by their paths' "title '$work/first'"
works 'options with =' drawn "$work/first" --width=700 "--out=$work/a=b.svg" "$work/second"
says 'the picture' "^$work/a=b.svg\$"
cp "$SCRIPT" "$work/out"
says 'so wide' 'size 700,'
says 'of both runs' "title 'second: test'"
works 'another lesson, two steps' drawn --out "$work/wine.png" "$work/wine/metrics.csv"
tap "$(($(grep -c '^plot ' "$SCRIPT") - 2))" 'loss and rate alone' "$SCRIPT"

mkdir "$work/wide"
printf 'step,train/loss,test/loss\n1,4,\n1,,730\n2,0.1,\n2,,0.2\n' >"$work/wide/metrics.csv"
works 'losses from 0.1 to 730' drawn --out "$work/wide.png" "$work/wide"
cp "$SCRIPT" "$work/out"
says 'on a logarithmic scale' '^set logscale y$'
says 'no further than the losses' '^set yrange \[0\.0[89][0-9]*:[0-9]{3}\.[0-9]*\]$'

# A long run: as many points as a picture can show, whose mean is that of all.
mkdir "$work/long"
awk 'BEGIN { print "step,train/loss"; for (i = 1; i <= 100000; i++) print i "," i % 7 }' \
    >"$work/long/metrics.csv"
works 'a hundred thousand steps' drawn --out "$work/long.png" "$work/long"
awk '/^[0-9]/ { n++; sum += $2 } END { exit !(n > 450 && n <= 502 && sum / n > 2.98 && sum / n < 3.02) }' "$SCRIPT"
tap $? 'five hundred points, the same mean' "$SCRIPT"

# A run that is going on: its last line is being written.
cp -r "$work/first" "$work/going"
printf '41,0.0' >>"$work/going/metrics.csv"
printf 'step,loss,lr\n1,2.5,0.1\n2,nan,0.1\n3,-inf,0.1\n4,2,0.1\n' >"$work/wine/metrics.csv"
works 'a loss that is nan, and one that is infinite' drawn --out "$work/gap.png" "$work/wine"
cp "$SCRIPT" "$work/out"
says 'leave a gap' '^4 2$'
! grep -qE '^[0-9]+ -?(nan|inf)' "$SCRIPT"
tap $? 'and no point' "$SCRIPT"
works 'a line without an end' drawn --out "$work/going.png" "$work/going"

# Names that a shell, awk or gnuplot could read otherwise.
mkdir "$work/names" "$work/names/of tmp\\n"
for name in 'a b' 'a\nb' "it's" '-dash' $'two\nlines' 'x=y'; do
    (cd "$work/names" && TMPDIR="of tmp\\n" drawn --out "$name.svg" "$work/first" && [ -e "./$name.svg" ]) \
        >"$work/out" 2>&1
    tap $? "a picture of the name $(printf %q "$name")" "$work/out"
    cp -r "$work/first" "$work/names/$name"
    works 'and a run' drawn --out "$work/one.svg" "$work/names/$name"
done
fails 'a picture in no folder' 1 'nowhere/x.svg: cannot be written' "$app" --out "$work/nowhere/x.svg" "$work/first"
fails 'a folder of that name' 1 'names.svg: cannot be written' \
    bash -c 'mkdir "$1/names.svg" && "$2" --out "$1/names.svg" "$1/first"' - "$work" "$app"
if localedef -i de_DE -f UTF-8 "$work/de_DE.UTF-8" 2>/dev/null; then
    works 'where numbers have commas' env LOCPATH="$work" LC_ALL=de_DE.UTF-8 PATH="$work/bin:$PATH" \
        "$app" --out "$work/one.svg" "$work/first"
    cp "$SCRIPT" "$work/out"
    says 'a loss of 0.05 is that' '^40 0\.05$'
fi

fails 'no folder given' 64 'DIR' "$app"
fails 'no such run' 1 'nowhere.*cannot be opened.*--log-dir' "$app" "$work/nowhere"
fails 'another picture format' 1 'must end in .png or .svg' "$app" --out x.jpg "$work/first"
broken() { # broken NAME PATTERN TEXT: a CSV with this text is refused
    mkdir -p "$work/broken"
    printf '%b' "$3" >"$work/broken/metrics.csv"
    fails "$1" 1 "$2" "$app" --out "$work/broken.png" "$work/broken"
}
broken 'an empty CSV' 'no rows' ''
broken 'a heading alone' 'no rows' 'step,lr\n'
broken 'another table' "first column is 'name'" 'name,age\nx,1\n'
broken 'a row that is too short' 'metrics.csv:3: 1 values, and there are 2' 'step,lr\n1,2\n3\n'
broken 'a word for a number' "metrics.csv:2: 'much' in column 'lr'" 'step,lr\n1,much\n'
broken 'a step that is none' "metrics.csv:2: 'nan' in column 'step'" 'step,lr\nnan,1\n'
broken 'no step' "metrics.csv:2: '' in column 'step'" 'step,lr\n,1\n'
broken 'nothing to draw' 'no column of loss' 'step,temperature\n1,2\n'
[ ! -e "$work/broken.png" ]
tap $? 'no picture of these'
fails 'no gnuplot' 1 'gnuplot is not installed.*apt install' env PATH="$work/first" "$app" --out "$work/x.png" "$work/first"
fails 'no number of pixels' 64 'width 3x: not a number' "$app" --width 3x "$work/first"
fails 'no such option' 64 'wide is no option.*usage' "$app" --wide 3 "$work/first"
fails 'nor with =' 64 'wide is no option.*usage' "$app" --wide=3 "$work/first"
fails 'a lone --' 64 '[-][-] is no option.*usage' "$app" -- "$work/first"
printf '#!/bin/sh\necho line 3: it does not work >&2\nexit 1\n' >"$work/bin/gnuplot"
export -f drawn
export app work
fails 'a gnuplot that fails' 1 'gnuplot failed: line 3: it does not work' \
    bash -c 'drawn --out "$work/x.png" "$work/first"'
[ ! -e "$work/x.png" ] && [ -z "$(find "$work" -name '*.tmp.*')" ]
tap $? 'nothing is left behind'

if command -v gnuplot >/dev/null; then
    works 'a real PNG' "$app" --out "$work/real.png" "$work/first" "$work/second" --width 500 --height 400
    [ "$(head -c 4 "$work/real.png" | tail -c 3)" = PNG ]
    tap $? 'it is one' "$work/out"
    works 'a real SVG' "$app" --out "$work/real.svg" "$work/first"
    grep -q '</svg>' "$work/real.svg"
    tap $? 'it is one' "$work/out"
    # A log like a whole run's, whose loss needs a logarithmic scale, which the next panel's does not.
    mkdir "$work/lesson"
    awk 'BEGIN { print "step,loss,epoch_loss,lr"; for (i = 1; i <= 500; i++)
        printf "%d,%g,%s,0.001\n", i, exp(-0.0095 * i), i % 5 ? "" : exp(-0.0095 * i) }' >"$work/lesson/metrics.csv"
    works 'is drawn' "$app" --out "$work/lesson.svg" "$work/lesson"
    drawn_text() { sed -n 's/.*<text>\(.*\)<\/text>.*/\1/p' "$work/lesson.svg"; }
    drawn_text >"$work/out"
    says 'its loss' '^ *loss$'
    says 'on a logarithmic scale' '^ *0\.01$'
    ! grep -qE '^ *(0\.0001|10)$' "$work/out"
    tap $? 'without empty decades' "$work/out"
    says 'and the rate' '^ *learning rate$'
else
    echo '# skipped: gnuplot is not installed (make deps)'
fi
done_testing
