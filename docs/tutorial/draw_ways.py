"""Draws one training step in several ways to share it, from runs that were measured: who keeps what, and when what was
computed and sent.

usage: draw_ways.py PICTURE.svg NAME=FOLDER...      a folder is that of --report (or --log-dir and --trace FOLDER/trace.json)
"""
import html
import json
import sys

PARTS = {"values": "#0072b2", "gradients": "#e69f00", "optimizer's state": "#009e73", "step memory": "#9aa0a6"}
KINDS = {"forward": "#56a5dd", "backward": "#e69f00", "optimizer": "#009e73", "message": "#b565a7", "wait": "#d3482a"}
LEFT, BARS, LINE, ROW, TOP = 10, 330, 650, 112, 60  # pixels


class Run:
    """A run's folder: what a rank keeps, and rank 0's quickest step: the one that other programs disturbed least. Of
    DataParallel, whose devices are threads, the first device's."""

    def __init__(self, folder):
        settings = json.load(open(f"{folder}/settings.json"))
        self.ranks = settings["ranks"]
        self.kept = {part: settings.get(f"{part}, MiB on a rank", 0) for part in PARTS}
        events = json.load(open(f"{folder}/trace.json"))["traceEvents"]
        begins = [e["ts"] for e in events if e["ph"] == "X" and e["pid"] == 0 and e["name"] == "step"][1:]
        if len(begins) < 2:
            sys.exit(f"draw_ways.py: {folder}/trace.json has fewer than three steps")
        self.length, begin = min((after - before, before) for before, after in zip(begins, begins[1:]))
        inside = [e for e in events if e["ph"] != "M" and e["pid"] == 0 and begin <= e["ts"] < begin + self.length]
        self.kept["step memory"] = max((e["args"]["step"] for e in inside if e["ph"] == "C"), default=0) / 2**20
        self.spans = [(self.kind(e), e["ts"] - begin, e["dur"], e.get("args", {}).get("bytes", 0) / 2**20)
                      for e in inside if e["ph"] == "X" and self.kind(e) and (e["tid"] == 0 or self.kind(e) == "message")]
        self.sent = sum(mib for kind, _, _, mib in self.spans if kind == "message")
        self.exposed = self.time_of("message") - self.overlap()

    @staticmethod
    def kind(event):
        category = event.get("cat")
        return "wait" if category == "span" and "wait" in event["name"] else category if category in KINDS else None

    def union(self, *kinds):
        """The spans of some kinds as intervals that do not overlap."""
        joined = []
        for begin, end in sorted((b, b + d) for kind, b, d, _ in self.spans if kind in kinds):
            if joined and begin <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([begin, end])
        return joined

    def time_of(self, *kinds):
        return sum(end - begin for begin, end in self.union(*kinds))

    def overlap(self):
        """Microseconds in which a kernel runs and a message is under way."""
        both = self.time_of("message", "forward", "backward", "optimizer")
        return self.time_of("message") + self.time_of("forward", "backward", "optimizer") - both


def rect(x, y, width, height, fill, title, more=""):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{more}>'
            f"<title>{html.escape(title)}</title></rect>")


def text(x, y, words, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(words)}</text>'


def draw_row(name, run, whole, scale, most, y):
    """Bars of all ranks; what one device would keep and a rank does not is an outline. Then rank 0's step."""
    out = [text(LEFT, y + 4, name, ' font-weight="bold" font-size="14"')]
    kept = sum(run.kept.values())
    width, height = BARS - 90, ROW - 44
    bar = min(38, width / run.ranks - 6)
    for rank in range(run.ranks):
        x, top = LEFT + rank * (bar + 6), y + 12 + height
        for part, colour in PARTS.items():
            share = run.kept[part] / most * height
            top -= share
            out.append(rect(x, top, bar, share, colour, f"rank {rank}, {part}: {run.kept[part]:.1f} MiB"))
        missing = max(sum(whole.kept[p] - run.kept[p] for p in PARTS if p != "step memory"), 0) / most * height
        if missing > 1:
            out.append(rect(x + 0.5, top - missing, bar - 1, missing, "none", f"rank {rank} does not keep this",
                            ' stroke="#9aa0a6" stroke-dasharray="3 2"'))
    out.append(text(LEFT, y + ROW - 18, f"{kept:.0f} MiB a rank"))
    x = LEFT + BARS
    for kind, begin, length, mib in run.spans:
        lane = y + (38 if kind == "message" else 12)
        label = f"{kind}: {length / 1000:.2f} ms" + (f", {mib:.2f} MiB" if mib else "")
        out.append(rect(x + begin * scale, lane, max(length * scale - 0.4, 0.4), 22, KINDS[kind], label))
        if mib and length * scale > 42:
            out.append(text(x + begin * scale + 3, lane + 15, f"{mib:.1f} MiB", ' font-size="10"'))
    out.append(text(x, y + ROW - 18, f"{run.length / 1000:.0f} ms"
                    + (f"; {run.sent:.0f} MiB in messages; {run.exposed / 1000:.1f} ms of them are not hidden by kernels" if run.sent else "")))
    return out


def main():
    if len(sys.argv) < 3 or not all("=" in argument for argument in sys.argv[2:]):
        sys.exit(__doc__.strip().split("\n\n")[1])
    ways = [argument.split("=", 1) for argument in sys.argv[2:]]
    runs = [(name, Run(folder)) for name, folder in ways]
    whole = runs[0][1]
    scale = LINE / max(run.length for _, run in runs)
    most = max(sum(run.kept.values()) for _, run in runs)
    out = [text(LEFT, 22, f"One training step, {len(runs)} ways to share it", ' font-size="18" font-weight="bold"')]
    x = LEFT
    for words, colour in PARTS.items():
        out += [rect(x, 36, 11, 11, colour, words), text(x + 15, 46, words)]
        x += 22 + 7.2 * len(words)
    x += 24
    for words, colour in KINDS.items():
        words = "waiting" if words == "wait" else words
        out += [rect(x, 36, 11, 11, colour, words), text(x + 15, 46, words)]
        x += 28 + 7.2 * len(words)
    for i, (name, run) in enumerate(runs):
        out += draw_row(name, run, whole, scale, most, TOP + i * ROW + 6)
    with open(sys.argv[1], "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + BARS + LINE + 10} {TOP + len(runs) * ROW}" '
                   'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n')
        file.write("\n".join(out) + "\n</svg>\n")


main()
