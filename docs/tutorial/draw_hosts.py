"""Draws the hosts of lesson 3 with their ranks, from what wine_ddp_multinode prints on each of them.

usage: draw_hosts.py picture.svg PORT HOST0.txt HOST1.txt
"""
import re
import sys

from picture import Picture


def main():
    port, ranks = sys.argv[2], []
    for path in sys.argv[3:]:
        found = re.findall(r"^\[init\] == local rank: (\d+), global rank: (\d+) ==$", open(path).read(), re.M)
        if not found:
            sys.exit(f"draw_hosts.py: {path} has no [init] lines of wine_ddp_multinode")
        ranks.append(sorted((int(local), int(number)) for local, number in found))
    hosts, each = len(ranks), max(map(len, ranks))
    wide, gap = 140 * each + 20, 120
    p = Picture(hosts * (wide + gap) - gap + 20, 284, f"{hosts} hosts and their ranks",
                f"Global rank 0, on host 0, listens on port {port}. The other ranks connect to it and get each other's "
                "addresses. Then each rank talks to the others directly, on ports that the operating system has chosen.")
    places = []
    for host, here in enumerate(ranks):
        x = 10 + host * (wide + gap)
        p.box(x, 56, wide, 132, "grey", solid=0.08)
        p.text(x + 84, 76, f"host {host}", 13, bold=True)
        p.text(x + 131, 76, f"--node-rank {host}", 10)
        for local, number in here:
            left = x + 10 + 140 * local
            p.box(left, 88, 130, 54, "blue", solid=0.2)
            p.text(left + 65, 110, f"global rank {number}", 13, "middle", bold=True)
            p.text(left + 65, 130, f"local rank {local}", 12, "middle")
            places.append((left, number))
    master = places[0][0]
    p.box(master, 142, 130, 26, "orange", f"listens on {port}", solid=0.4)
    for left, number in places[1:]:
        depth = 202 + 14 * number  # around the ranks between
        end = master + 110 - 24 * number
        p.out.append(f'<path d="M{left + 65} 144 V{depth} H{end} V176" fill="none" stroke="#e69f00" stroke-width="1.5"/>')
        p.arrow(end, 180, end, 169, "orange")
    p.text(20, 272, f"1. All ranks connect to the master, {port} on host 0, and learn each other's addresses.", 12)
    middle = [left + 65 for left, _ in places]
    for one in range(len(places)):
        for other in range(one + 1, len(places)):
            if other - one == 1 or (one == 0 and other == len(places) - 1):
                high = 44 if other - one == 1 else 26
                p.out.append(f'<path d="M{middle[one]} 86 V{high} H{middle[other]} V86" fill="none" stroke="#0072b2" '
                             'stroke-dasharray="4 3"/>')
    p.text(20, 16, "2. Then ranks talk to each other directly: a port of its own for each, from 32768 to 60999.", 12)
    p.save(sys.argv[1])


main()
