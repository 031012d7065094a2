"""Draws one step of time lines (--trace FILE) as SVG, below each other and on one scale: a lane for computing and one for
communication of each rank.

usage: draw_trace.py picture.svg NAME=trace.json...      the step that took least time, because other programs disturbed it
                                                          least; with NAME@STEP=trace.json that step, counted from 0
"""
import json
import re
import sys

from picture import Picture

COLOURS = {"forward": "blue", "backward": "orange", "optimizer": "green", "wait": "red", "message": "purple"}
NAMES = {"forward": "forward", "backward": "backward", "wait": "waiting for messages", "optimizer": "optimizer",
         "message": "a message (its number)"}
WIDTH, LANE, LEFT, HEAD = 860, 24, 150, 26
JOINED = 500  # microseconds between two kernels of a pass that are drawn as one


def kind(event):
    """What an event's colour is; None: it is not drawn."""
    category = event.get("cat")
    return "wait" if category == "span" and event["name"] == "wait for buckets" else category if category in COLOURS else None


class Step:
    """A step of a trace: lanes of spans, in microseconds since the step's begin."""

    def __init__(self, name, path):
        self.name, _, number = name.partition("@")
        events = [e for e in json.load(open(path))["traceEvents"] if e["ph"] == "X"]
        ranks = sorted({e["pid"] for e in events})
        steps = [[e for e in events if e["pid"] == r and e["name"] == "step"] for r in ranks]
        lengths = [max(s[i]["ts"] + s[i]["dur"] for s in steps) - min(s[i]["ts"] for s in steps)
                   for i in range(min(map(len, steps), default=0))]
        if len(lengths) < 2 or number and not 0 <= int(number) < len(lengths):
            sys.exit(f"draw_trace.py: there is no step {number or 1} in {path}: it has {len(lengths)}, counted from 0")
        step = int(number) if number else min(range(1, len(lengths)), key=lengths.__getitem__)
        begin, self.length = min(s[step]["ts"] for s in steps), lengths[step]
        lanes, own = {}, {s[step]["pid"]: s[step] for s in steps}
        for e in sorted(events, key=lambda e: e["ts"]):
            if kind(e) and 0 <= e["ts"] - own[e["pid"]]["ts"] < own[e["pid"]]["dur"]:
                lanes.setdefault((e["pid"], kind(e) == "message", e["tid"]), []).append(e)
        self.lanes = []
        for (rank, messages, thread), spans in sorted(lanes.items()):
            name = (f"rank {rank}, " if len(ranks) > 1 else "") + (
                "messages" if messages else "compute" if len(ranks) > 1 or len(lanes) == 1 else f"device {thread}")
            self.lanes.append((name, self.join(spans, begin)))

    @staticmethod
    def join(events, begin):
        """(kind, begin, end, title) of each message, and of neighbouring kernels of one pass together."""
        spans = []
        for e in events:
            what, at = kind(e), e["ts"] - begin
            end, last = at + e["dur"], spans[-1] if spans else None
            if last and what != "message" and last[0] == what and at - last[2] < JOINED:
                last[2] = max(last[2], end)
            else:
                spans.append([what, at, end, e["name"] if what == "message" else what])
        return spans


def draw(p, step, y, scale):
    p.text(4, y + 14, f"{step.name}: {step.length / 1000:.0f} ms", 13, bold=True)
    y += HEAD
    for lane, spans in step.lanes:
        p.text(4, y + 15, lane)
        for what, begin, end, title in spans:
            number = re.search(r"\d+", title) if what == "message" else None
            wide = max((end - begin) * scale, 1)
            p.box(LEFT + begin * scale, y, wide, LANE - 4, COLOURS[what], number[0] if number and wide > 12 else "",
                  f"{title}: {(end - begin) / 1000:.2f} ms", 0.55, size=11)
        y += LANE
    return y + 10


def main():
    if len(sys.argv) < 3 or not all("=" in argument for argument in sys.argv[2:]):
        sys.exit("usage: draw_trace.py picture.svg NAME=trace.json...")
    steps = [Step(*argument.split("=", 1)) for argument in sys.argv[2:]]
    longest = max(step.length for step in steps)
    scale = (WIDTH - LEFT - 20) / longest
    height = sum(HEAD + 10 + LANE * len(s.lanes) for s in steps)
    p = Picture(WIDTH, height + 54, "Time lines of a training step",
                "; ".join(f"{s.name}: {s.length / 1000:.0f} ms" for s in steps) + ". Lanes show when each rank computes and "
                "when its messages are under way.")
    y = 4
    for step in steps:
        y = draw(p, step, y, scale)
    tick = next(t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1e9) if longest / 1000 / t <= 10)
    p.arrow(LEFT, y, WIDTH - 8, y, "grey")
    for i in range(int(longest / 1000 / tick) + 1):
        x = LEFT + i * tick * 1000 * scale
        p.out.append(f'<line x1="{x:.1f}" y1="{y - 4}" x2="{x:.1f}" y2="{y + 4}" stroke="#8a9099"/>')
        p.text(x, y + 17, f"{i * tick:g}" + (" ms" if i == 0 else ""), 11, "middle")
    x = LEFT
    for what, colour in COLOURS.items():
        p.box(x, y + 28, 12, 12, colour, solid=0.55)
        p.text(x + 17, y + 38, NAMES[what])
        x += 36 + 6.6 * len(NAMES[what])
    p.save(sys.argv[1])


main()
