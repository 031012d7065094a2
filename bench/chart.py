"""A picture of make bench's results: bars of each engine's rate, in units of the best PyTorch's."""
from xml.sax.saxutils import escape

ROW, LEFT, WIDTH, HEAD = 20, 300, 900, 34
COLORS = {"tandem": "#1f5fb4", "PyTorch": "#d0661a"}


def bars(result):
    """(name, rate over the base, low, high, label) of each engine; the base is the best PyTorch,
    or the first row where there is none."""
    torch = [row["rate"] for row in result["rows"] if row["peer"].startswith("PyTorch")]
    base = max(torch) if torch else result["rows"][0]["rate"]
    for row in result["rows"]:
        yield (row["peer"], row["rate"] / base, row["low"] / base, row["high"] / base,
               "%.0f %s, %.2f" % (row["rate"], result["unit"], row["rate"] / base))


def draw_job(result, top, out):
    rows = list(bars(result))
    scale = (WIDTH - LEFT - 190) / max(high for _, _, _, high, _ in rows)
    out.append('<text x="8" y="%d" font-weight="bold">%s</text>' % (top + 16, escape(result["job"])))
    top += 24
    for name, rate, low, high, label in rows:
        middle = top + ROW / 2
        out.append('<text x="%d" y="%.1f" text-anchor="end">%s</text>'
                   % (LEFT - 6, middle + 4, escape(name)))
        out.append('<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>'
                   % (LEFT, top + 2, rate * scale, ROW - 4, COLORS.get(name.split()[0], "#888")))
        out.append('<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#222"/>'
                   % (LEFT + low * scale, LEFT + high * scale, middle, middle))
        out.append('<text x="%.1f" y="%.1f">%s</text>'
                   % (LEFT + high * scale + 6, middle + 4, escape(label)))
        top += ROW
    out.append('<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#999" stroke-dasharray="3"/>'
               % (LEFT + scale, LEFT + scale, top - ROW * len(rows), top))
    return top + 12


def draw(results, path):
    """Writes an SVG of all jobs that compare engines; False if there are none."""
    compared = [r for r in results if r.get("rows")]
    if not compared:
        return False
    body, top = [], HEAD
    for result in compared:
        top = draw_job(result, top, body)
    with open(path, "w") as f:
        f.write('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" '
                'font-family="sans-serif" font-size="12">\n<rect width="100%%" height="100%%" '
                'fill="white"/>\n<text x="8" y="20" font-size="14">Rates beside the best PyTorch '
                '(1, the dashed line); the thin line is the range of the rounds</text>\n'
                % (WIDTH, top))
        f.write("\n".join(body) + "\n</svg>\n")
    return True
