"""Draws how a filter slides over an image, from what apps/one_window prints.

usage: apps/one_window | draw_window.py picture.svg
"""
import sys

from picture import Picture

CELL = 30


def read(lines):
    parts = {}
    for line in lines:
        if ":" in line:
            name = line.split(":")[0]
            parts[name] = []
        else:
            parts[name].append([int(number) for number in line.split()])
    return parts


def grid(p, x, y, rows, colours, bold=()):
    for i, row in enumerate(rows):
        for k, number in enumerate(row):
            colour, solid = colours(number)
            p.box(x + k * CELL, y + i * CELL, CELL, CELL, colour, str(number), solid=solid)
    for i, k, height, width, colour in bold:
        p.out.append(f'<rect x="{x + k * CELL + 1}" y="{y + i * CELL + 1}" width="{width * CELL - 2}" '
                     f'height="{height * CELL - 2}" fill="none" stroke="{colour}" stroke-width="3"/>')


def main():
    parts = read(sys.stdin)
    if not {"image", "filter", "result"} <= parts.keys():
        sys.exit("draw_window.py: give it the output of one_window")
    image, kernel, result = parts["image"], parts["filter"], parts["result"]
    windows = ((0, 0, "#d55e00"), (1, 1, "#009e73"))  # row, column
    p = Picture(620, 306, "A filter of 3 x 3 slides over an image",
                "Each number of the result is the sum of nine pixels, each times the filter's number at its place. The "
                "window moves by one pixel and uses the same nine numbers everywhere.")
    p.text(10, 20, f"image, {len(image)} x {len(image[0])}", 13, bold=True)
    grid(p, 10, 32, image, lambda n: ("grey", 0.45 if n else 0.04), [(i, k, 3, 3, c) for i, k, c in windows])
    p.text(240, 60, "filter, 3 x 3", 13, bold=True)
    grid(p, 240, 72, kernel, lambda n: ("blue" if n > 0 else "orange" if n < 0 else "grey", 0.3 if n else 0.04))
    p.text(390, 50, f"result, {len(result)} x {len(result[0])}", 13, bold=True)
    grid(p, 390, 62, result, lambda n: ("blue" if n > 0 else "orange" if n < 0 else "grey", 0.07 * abs(n) + 0.04),
         [(i, k, 1, 1, c) for i, k, c in windows])
    p.arrow(196, 117, 232, 117)
    p.arrow(338, 117, 382, 117)
    for line, (i, k, colour) in enumerate(windows):
        terms = " ".join(f"{'+' if f > 0 else '-'} {image[i + a][k + b]}" for a, row in enumerate(kernel)
                         for b, f in enumerate(row) if f)
        p.out.append(f'<rect x="10" y="{236 + 26 * line}" width="12" height="12" fill="none" stroke="{colour}" stroke-width="3"/>')
        p.text(30, 247 + 26 * line, f"window at row {i}, column {k}:  {terms.lstrip('+ ')}  =  {result[i][k]}")
    p.save(sys.argv[1])


main()
