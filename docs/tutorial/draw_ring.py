"""Draws what every rank has after each round of the ring, from the output of apps/ring_allreduce, as SVG.

usage: apps/ring_allreduce | draw_ring.py picture.svg
"""
import sys

COLOURS = ["#dfe8ef", "#b5cfe0", "#7aa6c2", "#d9a441"]  # by how much of the sum a chunk has; the last: all
CELL, HIGH, LEFT, TOP, GAP = 46, 22, 70, 26, 24


def main():
    rounds = []
    for line in sys.stdin:
        if line.startswith("round "):
            rounds.append([])
        elif line.startswith("  rank ") and rounds:
            rounds[-1].append([int(v) for v in line.split(":")[1].split()])
    if not rounds:
        sys.exit("draw_ring.py: no rounds in the input: give it the output of ring_allreduce with 2 to 5 ranks")
    ranks = len(rounds[0])
    out = [f'<text x="{LEFT + r * (ranks * CELL + GAP)}" y="16">rank {r}</text>' for r in range(ranks)]
    for i, vectors in enumerate(rounds):
        y = TOP + i * (HIGH + 10) + (10 if i >= ranks else 0)
        out.append(f'<text x="4" y="{y + 15}">{"start" if i == 0 else f"round {i}"}</text>')
        for rank, values in enumerate(vectors):
            for chunk, value in enumerate(values):
                parts = str(value).count("1")  # rank r's values are 10^r
                colour = COLOURS[-1] if parts == ranks else COLOURS[min(parts, len(COLOURS) - 1) - 1]
                x = LEFT + rank * (ranks * CELL + GAP) + chunk * CELL
                out.append(f'<rect x="{x}" y="{y}" width="{CELL - 3}" height="{HIGH}" fill="{colour}"/>'
                           f'<text x="{x + (CELL - 3) / 2}" y="{y + 15}" text-anchor="middle">{value}</text>')
    width, height = LEFT + ranks * (ranks * CELL + GAP), TOP + len(rounds) * (HIGH + 10) + 14
    with open(sys.argv[1], "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n')
        f.write("\n".join(out) + "\n</svg>\n")


main()
