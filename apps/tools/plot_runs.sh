#!/bin/sh
# Draws what training runs have logged: loss, accuracy, learning rate and throughput of one run, or of
# several side by side.
#
#     apps/plot_runs [--out runs.svg] [--width N] [--height N] DIR...
#
# DIR is what a lesson got as --log-dir, or train_net's OUT_DIR: the folder with metrics.csv. awk writes
# the curves as tables into a script, and gnuplot draws it.
set -u
usage='usage: plot_runs [--out FILE.png|FILE.svg] [--width PIXELS] [--height PIXELS] DIR...'
out=runs.png width=0 height=0

fail() { # fail TEXT [CODE]
    printf '%s\n' "plot_runs: $1" >&2
    exit "${2:-1}"
}

left=$#
while [ "$left" -gt 0 ]; do
    case $1 in
    -h | --help)
        echo "$usage"
        exit 0
        ;;
    --version)
        echo 'tandem @VERSION@'
        exit 0
        ;;
    --out | --width | --height)
        [ "$left" -gt 1 ] || fail "$1 wants a value; $usage" 64
        case $1:$2 in
        --out:*) out=$2 ;;
        *: | *:*[!0-9]*) fail "$1 $2: not a number of pixels" 64 ;;
        --width:*) width=$2 ;;
        *) height=$2 ;;
        esac
        shift 2
        left=$((left - 2))
        ;;
    --*=*) # --out=FILE, as --out FILE
        option=${1%%=*} value=${1#*=}
        shift
        set -- "$option" "$value" "$@"
        left=$((left + 1))
        ;;
    -*) fail "$1 is no option; $usage" 64 ;;
    *)
        set -- "$@" "$1" # behind the options that are left
        shift
        left=$((left - 1))
        ;;
    esac
done
[ $# -gt 0 ] || fail 'give at least one folder: DIR...' 64
case $out in
*.png) terminal=pngcairo ;;
*.svg) terminal="svg background rgb 'white'" ;;
*) fail "--out $out: the name must end in .png or .svg" ;;
esac
case $out in -*) out=./$out ;; esac # no option of mv and rm
command -v gnuplot >/dev/null || fail 'gnuplot is not installed: make deps, or apt install gnuplot-nox'

work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
runs=0
for run; do # a copy of each: without a last line that is being written
    runs=$((runs + 1))
    file=$run
    [ ! -d "$run" ] || file=$run/metrics.csv
    [ -r "$file" ] || fail "$file: cannot be opened; runs write it with --log-dir"
    if [ -n "$(tail -c 1 "$file")" ]; then sed '$d' "$file"; else cat "$file"; fi >"$work/$runs"
done

# In C's locale: elsewhere awk may read 0.5 as 0, or write it as 0,5.
(cd "$work" && LC_ALL=C awk -v terminal="$terminal" -v width="$width" -v height="$height" '
function fail(text)
{
    print "plot_runs: " text >"/dev/stderr"
    exit 1
}

function quote(text)
{
    gsub(/\n/, " ", text)
    gsub("\047", "\047\047", text)
    return "\047" text "\047"
}

# What may be in a panel, under the names that programs give it. Two series: training and tests.
function panel(title, scale, range, train, train_columns, test, test_columns)
{
    panels++
    title_of[panels] = title
    scale_of[panels] = scale
    range_of[panels] = range
    label[panels, 1] = train
    wanted[panels, 1] = train_columns
    label[panels, 2] = test
    wanted[panels, 2] = test_columns
}

# The cells of the next line; 0: there is none.
function next_row(run, line)
{
    if ((getline line <(run "")) <= 0) {
        close(run "")
        return 0
    }
    sub(/\r$/, "", line)
    count = split(line, cell, ",")
    return 1
}

function is_number(text)
{
    return text ~ /^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$/
}

# Checks a run, and finds its first and last step, and which columns have numbers.
function check_run(run, path, line, i)
{
    for (line = 1; next_row(run); line++) {
        if (line == 1) {
            if (cell[1] != "step")
                fail(path ": the first column is \047" cell[1] "\047, not \047step\047: this is no metrics.csv of a training run")
            columns[run] = count
            for (i = 1; i <= count; i++)
                name[run, i] = cell[i]
            continue
        }
        if (count != columns[run])
            fail(path ":" line ": " count " values, and there are " columns[run] " columns")
        for (i = 1; i <= count; i++) {
            if (is_number(cell[i]))
                filled[run, i] = 1
            else if (i == 1 || (cell[i] != "" && cell[i] !~ /^[-+]?(nan|inf)/))
                fail(path ":" line ": \047" cell[i] "\047 in column \047" name[run, i] "\047 is no number")
        }
        first[run] = line == 2 || cell[1] + 0 < first[run] ? cell[1] + 0 : first[run]
        last[run] = line == 2 || cell[1] + 0 > last[run] ? cell[1] + 0 : last[run]
        rows[run] = line - 1
    }
    if (rows[run] == 0)
        fail(path ": no rows: nothing was logged yet")
}

function column_of(run, p, s, i, k, n, names)
{
    n = split(wanted[p, s], names, " ")
    for (k = 1; k <= n; k++)
        for (i = 1; i <= columns[run]; i++)
            if (name[run, i] == names[k] && (run, i) in filled)
                return i
    return 0
}

# The mean of all points that fall into the same of 500 parts of the steps: a million rows are more than a
# picture has pixels.
function write_points(run, column, scale, row, part, bin, x, y, n)
{
    part = (last[run] - first[run]) / 500
    for (row = 0; next_row(run); row++) {
        if (row == 0 || !is_number(cell[column]))
            continue
        bin = rows[run] <= 500 || part == 0 ? row : int((cell[1] - first[run]) / part)
        x[bin] += cell[1]
        y[bin] += scale * cell[column]
        n[bin]++
        most = bin > most ? bin : most
    }
    for (bin = 0; bin <= most; bin++) {
        if (!(bin in n))
            continue
        y[bin] /= n[bin]
        printf "%.9g %.9g\n", x[bin] / n[bin], y[bin]
        points++
        low = points == 1 || y[bin] < low ? y[bin] : low
        high = points == 1 || y[bin] > high ? y[bin] : high
    }
}

# The last part of a path, unless another run has the same.
function short_name(run, i, own)
{
    own = ARGV[run]
    if (match(own, /[^\/]+$/))
        own = substr(own, RSTART)
    for (i = 1; i <= runs; i++)
        if (i != run && substr(ARGV[i], length(ARGV[i]) - length(own) + 1) == own)
            return ARGV[run]
    return own
}

# Where the epochs of the first run begin, at most ten of them: marks of the upper axis.
function epoch_marks(run, column, i, marks, every, n, begins)
{
    for (i = 1; i <= columns[run]; i++)
        if (name[run, i] == "epoch")
            column = i
    if (column == 0)
        return ""
    for (i = 0; next_row(run); i++)
        if (i > 0 && cell[column] + 0 > n) {
            n = cell[column] + 0
            begins[n] = cell[1]
        }
    every = int((n + 9) / 10)
    for (i = 1; i <= n; i += every > 0 ? every : 1)
        if (i in begins)
            marks = marks (marks != "" ? ", " : "") "\"" i "\" " begins[i]
    return marks
}

# Training as lines; tests, of which there are few, as dots on a dashed line, in another colour if there is one run.
function curve(run, p, s, few, colour, text)
{
    split("#1f5fb4 #d0661a #2a8a3a #9040a0 #b02030 #707070 #10a0a0 #806010", colour, " ")
    text = runs > 1 ? short_name(run) : ""
    text = text (text != "" && label[p, s] != "" ? ": " : "") label[p, s]
    return "$p" p "r" run "s" s " using 1:2 with " (s == 2 || few ? "linespoints" : "lines") \
        " lc rgb \047" colour[(runs == 1 ? s - 1 : run - 1) % 8 + 1] "\047 " (s == 2 ? "dt 2 pt 7 ps 0.8" : "lw 1.5 pt 1") \
        (text != "" ? " title " quote(text) : " notitle")
}

# Tables first, then the panel that shows them.
function write_panel(p, s, run, column, before, curves)
{
    points = 0
    for (s = 1; s <= 2; s++)
        for (run = 1; run <= runs; run++)
            if ((column = column_of(run, p, s)) > 0) {
                print "$p" p "r" run "s" s " << END"
                before = points
                most = 0
                write_points(run, column, scale_of[p])
                print "END"
                curves = curves (curves != "" ? ", \\\n     " : "") curve(run, p, s, points - before < 3)
            }
    print "set title " quote(title_of[p]) "\nunset logscale y"
    if (title_of[p] == "loss" && low > 0 && high > 50 * low) # a linear scale shows the largest alone
        printf "set offsets 0, 0, 0, 0\nset yrange [%.6g:%.6g]\nset logscale y\n", low / 1.25, high * 1.25
    else
        print "set offsets 0, 0, graph 0.05, graph 0.05\nset yrange " range_of[p]
    print "plot " curves
}

BEGIN {
    runs = ARGC - 1
    panel("loss", 1, "[*:*]", "train", "train/loss loss", "test", "test/loss")
    panel("accuracy, % (training: mean of the epoch so far)", 100, "[0:100]", "train", \
        "train/epoch_accuracy", "test", "test/accuracy")
    panel("learning rate", 1, "[0:*]", "", "lr")
    panel("images a second", 1, "[0:*]", "", "images_per_second")
    for (run = 1; run <= runs; run++)
        check_run(run, ARGV[run] (ARGV[run] ~ /[.]csv$/ ? "" : "/metrics.csv"))
    for (p = 1; p <= panels; p++)
        for (run = 1; run <= runs; run++)
            if (column_of(run, p, 1) + column_of(run, p, 2) > 0)
                shown[p] = 1
    for (p in shown)
        count_shown++
    if (count_shown == 0)
        fail(ARGV[1] ": no column of loss, accuracy, lr or throughput in it")
    across = count_shown > 1 ? 2 : 1
    down = int((count_shown + 1) / 2)
    sub(/^[a-z]+/, "& noenhanced size " (width > 0 ? width : 560 * across) "," \
        (height > 0 ? height : 360 * down) " font \047sans,11\047", terminal)
    for (run = 1; run <= runs && run <= 4; run++)
        heading = heading (run > 1 ? ", " : "") short_name(run)
    print "set terminal " terminal "\nset multiplot layout " down "," across " title " quote(heading (runs > 4 ? ", ..." : ""))
    print "set grid lc rgb \047#c8c8c8\047"
    if ((marks = epoch_marks(1)) != "")
        print "set link x2\nset xtics nomirror\nset x2tics (" marks ")\nset x2label \047epoch\047 offset 0,-0.7"
    print "set xlabel \047step\047 offset 0,0.7\nset autoscale xfix"
    print "set key outside bottom center horizontal samplen 2 height 1"
    for (p = 1; p <= panels; p++)
        if (p in shown)
            write_panel(p)
    print "unset multiplot"
}' "$@") >"$work/script" || exit 1

said=$(gnuplot "$work/script" 2>&1 >"$work/picture") || fail "gnuplot failed: $said"
(cat "$work/picture" >"$out") 2>/dev/null || fail "$out: cannot be written" # a link stays, and a mode
printf '%s\n' "$out"
