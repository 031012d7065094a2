"""Compares what the commands of a tutorial page print with what the page shows.

usage: compare_output.py PAGE NUMBER OUTPUT      (of the NUMBERth ```sh block, counted from 1)
       compare_output.py --shown PAGE NUMBER     prints what the page shows; nothing if there is no ```text

A line `...` of the page stands for any number of lines. The ranks' [init] lines come in any order,
and anywhere: they are compared sorted.
"""
import re
import sys


def blocks(page):
    """Pairs of a ```sh block and the ```text block that follows, or None."""
    found = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", open(page).read(), re.M | re.S)
    return [(body, found[i + 1][1] if found[i + 1:] and found[i + 1][0] == "text" else None)
            for i, (kind, body) in enumerate(found) if kind == "sh"]


def split(text):
    lines = [line.rstrip() for line in text.splitlines()]
    return sorted(l for l in lines if l.startswith("[init]")), [l for l in lines if not l.startswith("[init]")]


def main():
    if sys.argv[1] == "--shown":
        print(blocks(sys.argv[2])[int(sys.argv[3]) - 1][1] or "", end="")
        return
    page, number, output = sys.argv[1], int(sys.argv[2]), open(sys.argv[3]).read()
    shown = blocks(page)[number - 1][1]
    (want_init, want), (is_init, lines) = split(shown), split(output)
    pattern = "".join(r"(?:.*\n)*?" if w == "..." else re.escape(w) + r"\n" for w in want)
    if want_init != is_init or not re.fullmatch(pattern, "".join(l + "\n" for l in lines)):
        at = next((w for w in want if w != "..." and w not in lines), "the order of the lines")
        sys.exit(f"{page}: block {number} is not what the commands print; the first difference: {at}\n{output}")


main()
