"""Draws what every rank has after each round of the ring, and who sends what to whom, from the output of
apps/ring_allreduce, as SVG. The arrows of one round after the other light up.

usage: apps/ring_allreduce | draw_ring.py picture.svg
"""
import sys

from picture import Picture

CELL, HIGH, LEFT, TOP, GAP, EVERY = 46, 22, 70, 26, 24, 50
SECONDS = 1.5  # of a round


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
    p = Picture(LEFT + ranks * (ranks * CELL + GAP), TOP + (len(rounds) - 1) * EVERY + HIGH + 14,
                f"All-reduce in a ring of {ranks} ranks",
                f"In {ranks - 1} rounds each rank adds the chunk that its left neighbour sends to its own. Then each rank has "
                f"one chunk of the complete sum, and in {ranks - 1} more rounds the complete chunks travel around.")
    left = lambda rank, chunk: LEFT + rank * (ranks * CELL + GAP) + chunk * CELL
    last = len(rounds) - 1
    p.out.append(f"<style>@media (prefers-reduced-motion: no-preference) {{ .go {{ animation: go {last * SECONDS}s infinite }} }}"
                 f" @keyframes go {{ 0%, {100 / last:.1f}% {{ opacity: 1 }} {100 / last + 1:.1f}%, 99% {{ opacity: 0.2 }} }}</style>")
    for rank in range(ranks):
        p.text(left(rank, 0), 16, f"rank {rank}")
    for i, vectors in enumerate(rounds):
        y = TOP + i * EVERY
        p.text(4, y + 15, "start" if i == 0 else f"round {i}")
        for rank, values in enumerate(vectors):
            for chunk, value in enumerate(values):
                parts = str(value).count("1")  # rank r's values are 10^r
                p.box(left(rank, chunk), y, CELL - 3, HIGH, "orange" if parts == ranks else "blue", str(value),
                      solid=0.75 if parts == ranks else 0.08 + 0.4 * (parts - 1) / ranks)
                if i > 0 and value != rounds[i - 1][rank][chunk]:
                    sender = (rank - 1) % ranks
                    p.arrow(left(sender, chunk) + CELL / 2, y - EVERY + HIGH + 1, left(rank, chunk) + CELL / 2, y - 1,
                            "orange" if parts == ranks else "blue",
                            more=f' class="go" style="animation-delay:{(i - 1) * SECONDS}s"')
    p.save(sys.argv[1])


main()
