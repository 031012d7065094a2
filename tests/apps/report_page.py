"""Reads a page of apps/report: checks that it is whole and harmless, and compares what it packs with the trace.

usage: report_page.py PAGE [TRACE]      prints the page's text, a line for each row of a table, each heading, ...
"""
import html.parser
import json
import re
import sys

EMPTY = {"meta", "link", "br", "hr", "img", "input"}
IMPLIED = {"th", "td"}  # their ends may be left out
KINDS = ["forward", "backward", "optimizer", "wait", "message", "part", "other", "memory"]


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.lines, self.text, self.scripts, self.wrong = [], [], "", [], []

    def end_line(self):
        if self.text.strip():
            self.lines.append(" ".join(self.text.split()))
        self.text = ""

    def handle_starttag(self, tag, attributes):
        if tag in IMPLIED and self.open and self.open[-1] in IMPLIED:
            self.open.pop()
        if tag not in IMPLIED | {"i", "span", "title", "text"}:
            self.end_line()
        self.text += " "
        for name, value in attributes:
            if name.startswith("on") or name in ("src", "href"):
                self.wrong.append(f"{tag} has {name}={value}")
        if tag not in EMPTY:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        if self.open and self.open[-1] in IMPLIED and tag not in IMPLIED:
            self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at line {self.getpos()[0]}")
        if tag not in IMPLIED | {"i", "span", "title", "text"}:
            self.end_line()

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in EMPTY:
            self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.text += data


DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def unpack(text):
    """(name, kind, begin, length, bytes) of each event."""
    numbers, number, shift = [], 0, 0
    for c in text:
        digit = DIGITS.index(c)
        number |= (digit & 31) << shift
        shift += 5
        if digit < 32:
            numbers.append(number)
            number, shift = 0, 0
    at = i = 0
    while i < len(numbers):
        name, kind = divmod(numbers[i], 8)
        at += numbers[i + 1]
        size = numbers[i + 3] if kind in (4, 7) else 0
        yield name, kind, at, numbers[i + 2], size
        i += 4 if kind in (4, 7) else 3


def kind_of(event):
    if event["ph"] == "C":
        return 7
    category = event.get("cat")
    return KINDS.index(category) if category in KINDS[:6] else 3 if category == "span" and "wait" in event["name"] else 6


def compare(packed, trace):
    """Whether all events of the trace are in the page, to the microsecond."""
    events = [e for e in json.load(open(trace, encoding="utf-8", errors="replace"))["traceEvents"] if e["ph"] in "XC"]
    first = min(e["ts"] for e in events)
    wanted = sorted((e["pid"], e["name"], kind_of(e), int(e["ts"] - first + 0.5), int(e["args"]["step"] / 1024 + 0.5)
                     if e["ph"] == "C" else e.get("args", {}).get("bytes", 0)) for e in events)
    found = sorted((lane["rank"], packed["names"][name], kind, begin, size)
                   for lane in packed["lanes"] for name, kind, begin, _, size in unpack(lane["events"]))
    if wanted != found:
        sys.exit(f"{len(wanted)} events in the trace, {len(found)} in the page; the first that differ: "
                 f"{next((pair for pair in zip(wanted, found) if pair[0] != pair[1]), None)}")


def main():
    text = open(sys.argv[1], encoding="utf-8").read()
    page = Page()
    page.feed(text)
    page.close()
    if page.open:
        page.wrong.append(f"not closed: {page.open}")
    if len(page.scripts) != 2:
        page.wrong.append(f"{len(page.scripts)} scripts")
    if re.search(r"(https?:)?//\w|@import|url\(", re.sub(r"<script.*?</script>", "", text, flags=re.S)):
        page.wrong.append("something from elsewhere")
    if page.wrong:
        sys.exit("\n".join(page.wrong))
    traces = json.loads(page.scripts[0])
    if len(sys.argv) > 2:
        compare(traces[0], sys.argv[2])
    print("\n".join(page.lines))


main()
