"""Draws which part of the model each rank keeps, for each way of sharding, from the table of apps/shard_memory.

usage: apps/shard_memory 4 | draw_keeps.py picture.svg
"""
import re
import sys

from picture import Picture

PARTS = {"values": "blue", "gradients": "orange", "state": "green"}
LEFT, WIDE, GAP, BAR, EVERY, TOP = 70, 132, 18, 12, 74, 62


def read(lines):
    ranks, ways = 0, []
    for line in lines:
        found = re.search(r"Adam, (\d+) processes", line)
        ranks = int(found[1]) if found else ranks
        words = line.split()
        if len(words) == 9 and words[0] != "shard":
            ways.append((words[0], dict(zip(PARTS, map(float, words[1:4]))), float(words[4]), float(words[5])))
    return ranks, ways


def main():
    ranks, ways = read(sys.stdin)
    if ranks < 2 or not ways or ways[0][0] != "none":
        sys.exit("draw_keeps.py: give it the table that shard_memory prints for 2 and more processes")
    whole = ways[0][1]
    p = Picture(LEFT + len(ways) * (WIDE + GAP), TOP + ranks * EVERY + 72, f"What each of {ranks} ranks keeps",
                "; ".join(f"{name}: {', '.join(part for part in PARTS if kept[part] < 0.9 * whole[part]) or 'nothing'} "
                          f"divided, {total:.0f} MiB a rank" for name, kept, _, total in ways))
    x = LEFT
    for part, colour in PARTS.items():
        p.box(x, 10, 12, 12, colour, solid=0.7)
        p.text(x + 17, 20, "optimizer's state" if part == "state" else part)
        x += 150
    p.box(x, 10, 12, 12, dashed=True)
    p.text(x + 17, 20, "another rank has it")
    for i, (name, kept, slots, total) in enumerate(ways):
        x = LEFT + i * (WIDE + GAP)
        p.text(x, TOP - 12, name, 13, bold=True)
        for rank in range(ranks):
            y = TOP + rank * EVERY
            for part, colour in PARTS.items():
                high = BAR * whole[part] / whole["values"]
                divided = kept[part] < 0.9 * whole[part]
                for piece in range(ranks):
                    mine = not divided or piece == rank
                    p.box(x + piece * WIDE / ranks, y, WIDE / ranks - 1.5, high, colour if mine else "grey",
                          title=f"rank {rank}: {part}, part {piece}" if mine else "", solid=0.7, dashed=not mine)
                y += high + 3
            if i == 0:
                p.text(8, y - 26, f"rank {rank}")
        y = TOP + ranks * EVERY + 8
        p.text(x, y, f"{total:.1f} MiB a rank", bold=True)
        p.text(x, y + 18, " + ".join(f"{kept[part]:.1f}" for part in PARTS), 11)
        if slots:
            p.text(x, y + 34, f"+ {slots:.1f} for blocks that run", 11)
    p.save(sys.argv[1])


main()
