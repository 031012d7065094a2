"""Draws one step of a timeline (--trace FILE) as SVG: a lane for computing and one for communication
of each rank.

usage: draw_trace.py trace.json picture.svg [STEP]      (the first is 0; otherwise 30, or the last of a shorter run)
"""
import json
import sys

COLOURS = {"forward": "#7aa6c2", "backward": "#d9a441", "wait for buckets": "#c0504d", "sgd optimizer": "#7f9f5f"}
WIDTH, LANE, LEFT = 860, 26, 130


def spans_of(events, rank, begin, end):
    for e in events:
        inside = e["ph"] == "X" and e["pid"] == rank and begin <= e["ts"] and e["ts"] < end
        if inside and (e["name"] in COLOURS or e["name"].startswith("bucket")):
            yield e


def main():
    events = json.load(open(sys.argv[1]))["traceEvents"]
    ranks = sorted({e["pid"] for e in events})
    steps = {r: [e for e in events if e["ph"] == "X" and e["pid"] == r and e["name"] == "step"] for r in ranks}
    count = min(map(len, steps.values()), default=0)
    step = int(sys.argv[3]) if len(sys.argv) > 3 else min(30, count - 1)
    if not 0 <= step < count:
        sys.exit(f"draw_trace.py: there is no step {step} in {sys.argv[1]}: it has {count}, counted from 0")
    begin = min(steps[r][step]["ts"] for r in ranks)
    end = max(steps[r][step]["ts"] + steps[r][step]["dur"] for r in ranks)
    scale = (WIDTH - LEFT - 10) / (end - begin)
    out, y = [], 10
    for rank in ranks:
        for lane, what in ((0, "compute"), (999, "communication")):
            out.append(f'<text x="4" y="{y + 17}">rank {rank}, {what}</text>')
            for e in spans_of(events, rank, begin, end):
                if (e["tid"] == 999) != (lane == 999):
                    continue
                x, w = LEFT + (e["ts"] - begin) * scale, max(e["dur"] * scale, 1.5)
                colour = COLOURS.get(e["name"], "#8064a2")
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="{LANE - 4}" fill="{colour}">'
                           f'<title>{e["name"]}: {e["dur"] / 1000:.2f} ms</title></rect>')
            y += LANE
        y += 8
    x = LEFT
    for name, colour in list(COLOURS.items()) + [("a bucket's all-reduce", "#8064a2")]:
        out.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/><text x="{x + 16}" y="{y + 11}">{name}</text>')
        x += 32 + 7 * len(name)
    out.append(f'<text x="4" y="{y + 11}">{(end - begin) / 1000:.0f} ms in all</text>')
    with open(sys.argv[2], "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 20}" '
                'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n')
        f.write("\n".join(out) + "\n</svg>\n")


main()
