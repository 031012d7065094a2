"""Draws the shapes through ResNet-18, and two of its blocks, from the table of --summary.

usage: apps/cifar_resnet18 --summary ... | draw_resnet.py shapes.svg blocks.svg
"""
import re
import sys

from picture import Picture


def read(lines):
    """{path: (type, [C,H,W] of its result, parameters)}, in the table's order."""
    rows = {}
    for line in lines:
        found = re.match(r"(\S+)\s+(\w+)(?:\(.*\))?\s+\[1,([\d,]+)\]\s+([\d,]+)", line)
        if found:
            rows[found[1]] = (found[2], [int(n) for n in found[3].split(",")], int(found[4].replace(",", "")))
    return rows


def sizes(shape):
    return " x ".join(map(str, shape))


def draw_shapes(rows, path):
    """A part's height is that of its images, its width grows with the channels."""
    parts = [("image", [3, rows["conv1"][1][1] * 2, rows["conv1"][1][2] * 2], "")]
    parts += [(name, rows[row][1], words) for name, row, words in
              (("conv1", "conv1", "7 x 7, every second pixel"), ("maxpool", "maxpool", "largest of 3 x 3"),
               ("layer1", "layer1.1.conv2", "2 blocks"), ("layer2", "layer2.1.conv2", "2 blocks"),
               ("layer3", "layer3.1.conv2", "2 blocks"), ("layer4", "layer4.1.conv2", "2 blocks"),
               ("fc", "fc", "logits"))]
    count = {name: sum(n for row, (_, _, n) in rows.items() if row == name or row.startswith(name + ".")) for name, *_ in parts}
    p = Picture(860, 264, "Shapes through ResNet-18", "Channels x height x width: "
                + ", ".join(f"{name} {sizes(shape)}" for name, shape, _ in parts))
    x = 14
    for i, (name, shape, words) in enumerate(parts):
        high = 4.6 * shape[1] + 8 if len(shape) == 3 else 12
        wide = 8 + shape[0] / 512 * 56
        centre = x + 44
        p.box(centre - wide / 2, 120 - high / 2, wide, high, "grey" if i == 0 else "green" if name == "fc" else "blue",
              solid=0.35, title=f"{name}: {sizes(shape)}")
        if i + 1 < len(parts):
            p.arrow(centre + wide / 2 + 5, 120, centre + 62, 120)
        p.text(centre, 214, name, 13, "middle", bold=True)
        p.text(centre, 230, sizes(shape), 12, "middle")
        p.text(centre, 20, f"{count[name]:,}" if count[name] else "", 11, "middle")
        p.text(centre, 250, words, 9, "middle")
        x += 106
    p.text(12, 20, "parameters:", 11)
    p.save(path)


def draw_block(p, rows, block, x, y):
    """From left to right: two convolutions; what goes around them is added to their result."""
    first, second = rows[block + ".conv1"][1], rows[block + ".conv2"][1]
    down = rows.get(block + ".downsample.0")
    before = rows["maxpool"][1] if block == "layer1.0" else rows["layer1.1.conv2"][1]
    names = [("conv1", "blue", sizes(first)), ("bn1, relu", "orange", ""), ("conv2", "blue", sizes(second)), ("bn2", "orange", "")]
    p.text(x, y - 14, block, 14, bold=True)
    p.text(x, y + 24, "x", 14)
    p.text(x, y + 44, sizes(before), 11)
    left = x + 94
    p.arrow(x + 14, y + 20, left - 3, y + 20)
    for name, colour, words in names:
        p.box(left, y, 96, 40, colour, name, solid=0.3)
        p.text(left + 48, y + 56, words, 11, "middle")
        p.arrow(left + 96, y + 20, left + 121, y + 20)
        left += 124
    p.box(left, y + 4, 32, 32, "green", "+", solid=0.4, size=18)
    p.arrow(left + 32, y + 20, left + 56, y + 20)
    p.box(left + 59, y, 56, 40, "orange", "relu", solid=0.3)
    p.text(left + 122, y + 24, sizes(second), 11)
    middle = (x + 240, x + 500) if down else (left, left)
    p.out.append(f'<path d="M{x + 66} {y + 20} V{y + 86} H{middle[0]} M{middle[1]} {y + 86} H{left + 16} V{y + 46}" fill="none" '
                 'stroke="#009e73" stroke-width="2"/>')
    p.arrow(left + 16, y + 50, left + 16, y + 38, "green", 2)
    if down:
        p.box(x + 240, y + 71, 260, 30, "blue", f"conv 1 x 1, every second pixel: {sizes(down[1])}", solid=0.3, size=11)
    else:
        p.text(x + 240, y + 81, "x itself: in backward its gradient passes unchanged", 11)


def main():
    rows = read(sys.stdin)
    if not {"conv1", "maxpool", "layer1.0.conv1", "layer2.0.downsample.0", "fc"} <= rows.keys():
        sys.exit("draw_resnet.py: give it the output of cifar_resnet18 --summary")
    draw_shapes(rows, sys.argv[1])
    p = Picture(860, 290, "Two residual blocks of ResNet-18", "Two convolutions, each with batch normalization; the block's "
                "input is added to their result. Where a block halves height and width, a convolution of 1 x 1 makes the "
                "input fit.")
    draw_block(p, rows, "layer1.0", 14, 36)
    draw_block(p, rows, "layer2.0", 14, 176)
    p.save(sys.argv[2])


main()
