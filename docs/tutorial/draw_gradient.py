"""Draws forward and backward of apps/one_gradient, from what it prints, next to the tape.

usage: apps/one_gradient | draw_gradient.py picture.svg
"""
import sys

from picture import Picture


def read(lines):
    """The rows before the step of SGD: {name: numbers}."""
    rows = {}
    for line in lines:
        if line.startswith("after"):
            break
        words = line.split()
        rows[words[0]] = [float(word) for word in words[-2:]] if words[0] != "loss" else [float(words[1])]
    return rows


def node(p, x, y, name, value, gradient):
    p.box(x, y, 104, 58, "grey", solid=0.08)
    p.text(x + 52, y + 16, name, 12, "middle", bold=True)
    p.text(x + 8, y + 33, f"{value:.4f}")
    if gradient is not None:
        p.box(x + 4, y + 38, 96, 17, "orange", f"gradient {gradient:.4f}", size=11)


def main():
    rows = read(sys.stdin)
    if not {"weights", "logits", "probabilities", "loss", "gradient"} <= rows.keys():
        sys.exit("draw_gradient.py: give it the output of one_gradient")
    w, z, p_of, loss, g = (rows[name] for name in ("weights", "logits", "probabilities", "loss", "gradient"))
    x = z[0] / w[0]
    p = Picture(840, 250, "Forward and backward of a network of two weights",
                f"The input {x:g} times the weights {w[0]:g} and {w[1]:g} gives two logits, and they and the label a loss "
                f"of {loss[0]}. Backward goes from the loss, whose gradient is 1, to the logits and to the weights, whose "
                f"gradients are {g[0]} and {g[1]}. The tape next to it has two entries: linear and cross_entropy.")
    node(p, 10, 96, "x", x, None)
    for i in range(2):
        y = 30 + 132 * i
        node(p, 150, y, f"weight {i}", w[i], g[i])
        node(p, 310, y, f"logit {i}", z[i], p_of[i] - i)
        p.arrow(114, 125, 310, y + (52 if i == 0 else 6))
        p.arrow(254, y + 20, 310, y + 20)
        p.arrow(414, y + 20, 470, 108 + 20 * i)
        p.arrow(470, 132 + 14 * i, 414, y + 47, "orange")
        p.arrow(310, y + 47, 254, y + 47, "orange")
        p.text(310, y - 6 if i == 0 else y + 74, f"probability {p_of[i]:.4f}", 11)
    node(p, 470, 96, "loss", loss[0], 1)
    p.text(10, 20, "forward", 12, more=' font-style="italic"')
    p.arrow(75, 16, 125, 16)
    p.text(10, 40, "backward", 12, more=' font-style="italic"')
    p.arrow(125, 36, 75, 36, "orange")
    p.text(610, 44, "the tape", 13, bold=True)
    for i, (name, what, keeps) in enumerate((("1  linear", "x, weights: the logits", "keeps x"),
                                             ("2  cross_entropy", "logits, label 1: the loss", "keeps the probabilities"))):
        p.box(610, 54 + 66 * i, 196, 58, "blue", solid=0.12)
        p.text(618, 70 + 66 * i, name, bold=True)
        p.text(618, 87 + 66 * i, what)
        p.text(618, 104 + 66 * i, keeps)
    p.arrow(822, 178, 822, 54, "orange")
    p.text(610, 200, "backward reads it from the end", 12, more=' font-style="italic"')
    p.save(sys.argv[1])


main()
