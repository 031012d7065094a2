"""Draws what one rank has in the course of a step, for each way of sharding, from what apps/shard_memory PROCESSES SHARD
prints, one after the other.

usage: draw_shard.py picture.svg < moments
"""
import re
import sys

COLOURS = {"optimizer's state": "#7f9f5f", "values": "#7aa6c2", "gradients": "#d9a441"}
LEFT, WIDTH, HEIGHT, GAP = 54, 190, 220, 14


def read(lines):
    """Pairs of a setting and its moments: (values, gradients, state) in MiB."""
    steps = []
    for line in lines:
        if line.startswith("step of "):
            steps.append((re.match(r"step of (\w+)", line)[1], []))
        elif steps and line.split()[:1] in (["forward"], ["backward"]):
            steps[-1][1].append([float(n) for n in line.split()[2:5]])
    return steps


def main():
    steps = read(sys.stdin)
    if not steps or not all(moments for _, moments in steps):
        sys.exit("draw_shard.py: no moments of a step in the input")
    most = max(sum(m) for _, moments in steps for m in moments)
    scale, out = HEIGHT / most, []
    for k, (name, moments) in enumerate(steps):
        x, w = LEFT + k * (WIDTH + GAP), WIDTH / len(moments)
        for i, (values, gradients, state) in enumerate(moments):
            y = 20 + HEIGHT
            for part, amount in zip(COLOURS, (state, values, gradients)):
                y -= amount * scale
                out.append(f'<rect x="{x + i * w:.1f}" y="{y:.1f}" width="{w + 0.3:.1f}" '
                           f'height="{amount * scale:.1f}" fill="{COLOURS[part]}"><title>{part}: {amount} MiB</title></rect>')
        peak = max(sum(m) for m in moments)
        out.append(f'<text x="{x}" y="{20 + HEIGHT - peak * scale - 5:.0f}">{name}: {peak:.0f} MiB</text>')
        out.append(f'<text x="{x}" y="{HEIGHT + 36}">forward</text><text x="{x + WIDTH / 2}" y="{HEIGHT + 36}">backward</text>')
    x = LEFT
    for part, colour in COLOURS.items():
        out.append(f'<rect x="{x}" y="{HEIGHT + 48}" width="12" height="12" fill="{colour}"/>'
                   f'<text x="{x + 16}" y="{HEIGHT + 59}">{part}</text>')
        x += 150
    with open(sys.argv[1], "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + len(steps) * (WIDTH + GAP)}" height="{HEIGHT + 70}" '
                'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n')
        f.write("\n".join(out) + "\n</svg>\n")


main()
