#!/usr/bin/env bash
# Draws the main job's training curve and a published one of PyTorch, from the table in docs/results.md. Behind
# them it draws every step of a run, if its metrics.csv (--log-dir) is given.
# usage: docs/plot_curve.sh [OUT.png [METRICS.csv]]       (needs gnuplot)
set -euo pipefail
docs=$(dirname "$0")
out=${1:-$docs/curve.png} csv=${2:-}

points() { # points PyTorch|tandem: step, loss and accuracy, an empty line after each epoch
    awk -F ' *[|] *' -v run="$1" '
        /^## /                   { table = /CIFAR-10, compared with PyTorch/ }
        table && $2 ~ /^[0-9]+$/ { epoch = $2 }
        table && $3 == run       { for (i = 0; i < 4; i++) {
                                       split($(4 + i), pair, " */ *")
                                       print 196 * (epoch - 1) + (i < 3 ? 50 * (i + 1) : 196), pair[1], pair[2]
                                   }
                                   print "" }' "$docs/results.md"
}
[ "$(points PyTorch | grep -c .)" = 20 ] && [ "$(points tandem | grep -c .)" = 20 ] ||
    { echo 'plot_curve.sh: results.md has no table of 20 points for each run' >&2; exit 1; }

panel() { # panel COLUMN TITLE CSV-EXPRESSION KEY
    printf 'set title "%s"\nset key %s\nplot ' "$2" "$4"
    [ -z "$csv" ] || printf '"%s" using "step":(%s) with lines lc rgb "#c8d4e8" title "tandem, every step", ' "$csv" "$3"
    printf '$pytorch using 1:%d with linespoints lw 1.5 dt 2 pt 6 ps 0.9 lc rgb "#d0661a" title "PyTorch, published", ' "$1"
    printf '$tandem using 1:%d with linespoints lw 1.5 pt 7 ps 0.7 lc rgb "#1f5fb4" title "tandem"\n' "$1"
}
gnuplot <<PLOT
\$pytorch << END
$(points PyTorch)
END
\$tandem << END
$(points tandem)
END
set terminal pngcairo size 1000,400 font "sans,11"
set output "$out"
set datafile separator $([ -z "$csv" ] && echo whitespace || echo '" ,"')
set multiplot layout 1,2 title "ResNet-18 on CIFAR-10, batch 256, five epochs: running means within each epoch"
set grid lc rgb "#c8c8c8"
set xlabel "step"
set xtics 196
$(panel 2 loss 'column("train/epoch_loss")' 'top right')
$(panel 3 'training accuracy, %' '100 * column("train/epoch_accuracy")' 'bottom right')
unset multiplot
PLOT
