#!/usr/bin/env bash
# Draws the training curves of a run's metrics.csv: loss (mean over the epoch so far) and accuracy.
# usage: docs/plot_curve.sh LOG_DIR/metrics.csv OUT.png [TITLE]       (needs gnuplot)
set -euo pipefail
csv=${1:?usage: plot_curve.sh METRICS.csv OUT.png [TITLE]}
out=${2:?usage: plot_curve.sh METRICS.csv OUT.png [TITLE]}
gnuplot <<PLOT
set terminal pngcairo size 960,420 font "sans,11"
set output "$out"
set datafile separator ","
set title "${3:-$csv}"
set xlabel "step"
set ylabel "loss"
set y2label "accuracy %"
set ytics nomirror
set y2tics
set y2range [0:100]
set grid
set key center right
plot "$csv" using "step":"train/loss" with lines lc rgb "#c8d4e8" title "loss of a batch", \
     "" using "step":"train/epoch_loss" with lines lw 2 lc rgb "#1f5fb4" title "loss, mean within the epoch", \
     "" using "step":(100 * column("train/epoch_accuracy")) axes x1y2 with lines lw 2 lc rgb "#d0661a" \
        title "training accuracy, within the epoch", \
     "" using "step":(100 * column("test/accuracy")) axes x1y2 with points pt 7 ps 1.5 lc rgb "#2a8a3a" \
        title "test accuracy"
PLOT
