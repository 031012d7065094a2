"""Draws two ranks as columns, from what apps/mean_gradient prints: data, gradients, their mean, the step.

usage: apps/mean_gradient | draw_mean.py picture.svg
"""
import sys

from picture import Picture

LEFT, WIDE, GAP, HIGH, EVERY = 110, 210, 90, 34, 66  # of a column, and of its rows


def main():
    rows = []
    for line in sys.stdin:
        name, numbers = line[:10].strip(), line[10:].split()
        if line.startswith("one process"):
            break
        if name and len(numbers) == 4:
            rows.append((name, [float(n) for n in numbers]))
    names = [name for name, _ in rows]
    if names != ["x, label", "weights", "gradient", "mean", "weights"]:
        sys.exit("draw_mean.py: give it the output of mean_gradient")
    colours = ["green", "blue", "orange", "red", "blue"]
    left = ["its sample", "weights", "forward and\nbackward", "all-reduce", "the same step"]
    mean = rows[3][1]
    p = Picture(LEFT + 2 * WIDE + GAP + 20, 44 + len(rows) * EVERY, "A step of two ranks",
                "Both ranks begin with the same weights and have different samples, so they get different gradients. "
                f"All-reduce gives both the mean, {mean[0]} and {mean[1]}. Both make the same step and have the same "
                "weights again.")
    for rank in range(2):
        x = LEFT + rank * (WIDE + GAP)
        p.text(x + WIDE / 2, 24, f"rank {rank}", 14, "middle", bold=True)
        for i, (name, numbers) in enumerate(rows):
            y = 40 + i * EVERY
            a, b = numbers[2 * rank:2 * rank + 2]
            words = f"x = {a:g}, class {b:g}" if i == 0 else f"{name}  {a:.4f}   {b:.4f}"
            p.box(x, y, WIDE, HIGH, colours[i], words)
            if i and i != 3:
                p.arrow(x + WIDE / 2, y - EVERY + HIGH + 2, x + WIDE / 2, y - 2)
    for i, words in enumerate(left):
        for k, part in enumerate(words.split("\n")):
            p.text(8, 40 + i * EVERY + 21 + 15 * k, part)
    top, bottom = 40 + 2 * EVERY + HIGH + 2, 40 + 3 * EVERY - 2
    for one in range(2):  # each gradient goes into both means
        for other in range(2):
            p.arrow(LEFT + WIDE / 2 + one * (WIDE + GAP), top, LEFT + WIDE / 2 + other * (WIDE + GAP), bottom, "red")
    p.save(sys.argv[1])


main()
