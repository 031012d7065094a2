#!/usr/bin/env python3
"""Words that tandem's texts do not use, because learners stumble over them (CONTRIBUTING.md): looks at the comments
and messages of the product, and at the documents. A word may have a number of places left from before the rule; the
number may only shrink.

usage: words.py [N]     shows the places of the list's Nth word, too
"""
import os
import re
import sys

WORDS = [  # what is not written, what is written instead, places left
    (r"pictures?", "image", 101),
    (r"nobody", "no thread, no rank, no caller: name the thing", 43),
    (r"beside", "next to, compared with", 21),
    (r"so many", "a number of, N", 25),
    (r"meets?|met", "in range, valid; waits for, is reached by", 93),
    (r"lets? go|letting go", "release", 0),
    (r"holds? on to", "retain", 0),
    (r"as ever", "as before", 0),
    (r"anew", "again", 0),
    (r"by turns", "in turns", 0),
    (r"rehears\w*", "warm-up", 0),
    (r"left out", "skipped", 0),
    (r"put off", "deferred", 0),
    (r"lies|lie|lay", "is, is stored", 132),
    (r"the articles?", "the name: distribuuuu", 0),
    (r"one behind the other", "one after the other", 0),
    (r"is told|are told", "gets, receives, is called with", 12),
]
ROOMS = ["tensor", "autograd", "nn", "data", "dist", "apps", "examples"]
SOURCES = (".c", ".h", ".inc", ".def", ".cu", ".cuh", ".cc")
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[^\n]*", re.M)
FENCE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)


def texts_of(path):
    """(line number, text) of what people read: comments and messages, or a document without its code."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".md"):
        prose = FENCE.sub(lambda match: "\n" * match.group().count("\n"), text)
        yield from enumerate(prose.split("\n"), 1)
        return
    text = INCLUDE.sub("", text)
    for match in TOKEN.finditer(text):
        if not match.group().startswith("'"):
            first = text.count("\n", 0, match.start()) + 1
            yield from enumerate(match.group().split("\n"), first)


def files():
    yield "README.md"
    for folder in ROOMS + ["docs"]:
        for path, folders, names in os.walk(folder):
            folders.sort()
            yield from (os.path.join(path, n) for n in sorted(names)
                        if n.endswith(SOURCES + (".md",)) and not os.path.islink(os.path.join(path, n)))


def main():
    patterns = [re.compile(rf"\b(?:{word})\b", re.I) for word, _, _ in WORDS]
    places = [[] for _ in WORDS]
    for path in files():
        for line, text in texts_of(path):
            for i, pattern in enumerate(patterns):
                places[i] += [f"{path}:{line}: {text.strip()}"] * len(pattern.findall(text))
    bad = 0
    for i, ((word, instead, most), found) in enumerate(zip(WORDS, places), 1):
        if sys.argv[1:] == [str(i)]:
            print("\n".join(found))
        if len(found) > most:
            bad += 1
            print(f"FAIL  words: {len(found)} places with '{word}', {most} allowed; write: {instead}"
                  f" (scripts/words.py {i} shows them)")
        elif len(found) < most:
            print(f"      words: '{word}' has {len(found)} places: lower the {most} in scripts/words.py")
    if not bad:
        print("ok    words")
    return 1 if bad else 0


sys.exit(main())
