#!/usr/bin/env python3
"""Names of static functions that stand in several files of a room: a reader who searches, sets a breakpoint or reads a
profile wants one place. Such a name gets its file's noun: ring_take, staged_take (CONTRIBUTING.md).

usage: statics.py [FOLDER]     the tree to look at, "." without
"""
import os
import re
import sys
from collections import defaultdict

# Lessons (apps/*.c) are programs of their own, whose difference to their neighbours is what they teach.
ROOMS = ["tensor", "autograd", "nn", "data", "dist", "apps/library", "apps/tools"]
ENDINGS = (".c", ".h", ".inc", ".cu", ".cuh", ".cc")
SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
# At the beginning of a line; names that a macro makes (FOR_DTYPE(take)) are in capitals and do not count.
STATIC = re.compile(r"^static\b[^;{}()=#]*?\b([a-z]\w*)\s*\((?!\s*\*)", re.M)


def static_functions(text):
    """The names of the static functions that a source defines or declares."""
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)+|_Atomic\(\w+\)", "", SKIPPED.sub("", text))
    return {match.group(1) for match in STATIC.finditer(text)}


def shared_names(top, room):
    """{name: files} of the names that more than one file of a room has."""
    files = defaultdict(list)
    for folder, folders, names in os.walk(os.path.join(top, room)):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(ENDINGS) and not os.path.islink(path):
                with open(path, encoding="utf-8") as file:
                    for function in static_functions(file.read()):
                        files[function].append(os.path.relpath(path, top))
    return {name: where for name, where in sorted(files.items()) if len(where) > 1}


def main():
    top = sys.argv[1] if len(sys.argv) > 1 else "."
    failed = False
    for room in ROOMS:
        for name, files in shared_names(top, room).items():
            print(f"{name}: {' '.join(files)}")
            failed = True
    print("FAIL  names of static functions: give each its file's noun" if failed
          else "ok    names of static functions")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
