#!/usr/bin/env python3
"""make sizes: lines of code (no blanks, no comments) by room and folder next to the plan, files and
functions that are too long, the number of public functions, and the lines of each lesson."""
import os
import re
import subprocess
from collections import defaultdict

# What seems right, in lines of code: of a folder alone, or ("room/*") with all that is below it.
PLAN = {
    "tensor": 2600, "tensor/cpu": 8000, "tensor/cuda": 6500, "autograd/*": 2400,
    "nn": 1800, "data": 1500, "dist": 3000,
}
PUBLIC_PLAN = 200
# Families of operations, one line each: a reader looks one up, and need not know the others.
FAMILIES = re.compile(r"autograd/(ops/(elements|shapes)|losses|norms|windows)\.h")
LESSON_PLAN = 200
ROOMS = ["tensor", "autograd", "nn", "data", "dist", "apps"]
BESIDE = ["tests", "bench", "examples"]
ENDINGS = (".c", ".h", ".inc", ".def", ".cu", ".cuh", ".cc")
LONG_FILE, LONG_FUNCTION = 500, 60

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def without_comments(text):
    """The same lines, with nothing where a comment was."""
    def kept(match):
        token = match.group()
        return "\n" * token.count("\n") if token.startswith("/") else token
    return TOKEN.sub(kept, text)


def count_code(text):
    return sum(1 for line in without_comments(text).split("\n") if line.strip())


def functions(text):
    """(name, lines) of each function: its braces stand alone in the first column."""
    lines = text.split("\n")
    begin = None
    for number, line in enumerate(lines):
        if line == "{":
            begin = number
        elif line.startswith("}") and begin is not None:
            head = begin
            while head > 0 and lines[head - 1].strip() and not lines[head - 1].startswith(("}", "#")):
                head -= 1
            name = re.search(r"(\w+)\)?\(", " ".join(lines[head:begin]))
            yield name.group(1) if name else "?", number - begin + 1
            begin = None


def sources(folder):
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(ENDINGS) and not os.path.islink(os.path.join(path, name)):
                yield os.path.join(path, name)


def public_functions():
    """How many functions each header declares, of those that tandem.h includes."""
    command = os.environ.get("CC", "cc").split() + ["-E", "-I.", "-x", "c", "tandem.h"]
    texts, ours = defaultdict(str), None
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n"):
        place = re.match(r'# \d+ "([^"]+)"', line)
        if place:
            ours = None if place.group(1).startswith(("/", "<")) else os.path.normpath(place.group(1))
        elif ours and not line.startswith("#"):
            texts[ours] += line + "\n"
    seen, counts = set(), defaultdict(int)
    for header, text in texts.items():
        changes = 1
        while changes:  # bodies, from the inside out
            text, changes = re.subn(r"\{[^{}]*\}", ";", text)
        for declaration in text.split(";"):
            declaration = re.sub(r"__attribute__\s*\(\(.*?\)\)+", "", declaration, flags=re.S).strip()
            name = re.match(r"[\w\s*]*?\b\(?(td_\w+)\)?\s*\((?!\s*\*)", declaration)
            if name and not declaration.startswith("typedef") and name.group(1) not in seen:
                seen.add(name.group(1))
                counts[header] += 1
    return counts


def row(name, lines, plan=None):
    print("  %-24s %7s%s" % (name, f"{lines:,}", f" {plan:>7,}" if plan else ""))


def main():
    by_folder, long_files, long_functions, all_functions = defaultdict(int), [], [], 0
    lessons = []
    for room in ROOMS + BESIDE:
        for path in sources(room):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            code = count_code(text)
            by_folder[os.path.dirname(path)] += code
            if room == "apps" and os.path.dirname(path) == room and path.endswith(".c"):
                lessons.append((path, code))
            if room in BESIDE:
                continue
            length = text.count("\n")
            if length > LONG_FILE:
                long_files.append((length, path))
            for name, lines in functions(text):
                all_functions += 1
                if lines > LONG_FUNCTION:
                    long_functions.append((lines, f"{path}: {name}"))

    print("lines of code (no blanks, no comments)")
    print("  %-24s %7s %7s" % ("", "today", "plan"))
    product = 0
    for room in ROOMS:
        folders = sorted(f for f in by_folder if f == room or f.startswith(room + "/"))
        total = sum(by_folder[f] for f in folders)
        product += total
        row(room + "/", total, PLAN.get(room + "/*"))
        for folder in folders:
            name = "the room itself" if folder == room else folder[len(room) + 1:] + "/"
            row("  " + name, by_folder[folder], PLAN.get(folder))
    row("product", product)
    for room in BESIDE:
        row(room + "/", sum(n for f, n in by_folder.items() if f == room or f.startswith(room + "/")))
    public = public_functions()
    families = {header: n for header, n in public.items() if FAMILIES.fullmatch(header)}
    print(f"public functions: {sum(public.values()) - sum(families.values())} (plan: about {PUBLIC_PLAN}), and "
          f"{sum(families.values())} operations in families: " + ", ".join(f"{h} {n}" for h, n in families.items()))
    print(f"files of more than {LONG_FILE} lines: {len(long_files)}")
    for length, path in sorted(long_files, reverse=True):
        print("  %5d %s" % (length, path))
    print(f"functions of more than {LONG_FUNCTION} lines: {len(long_functions)} of {all_functions:,}")
    for length, name in sorted(long_functions, reverse=True):
        print("  %5d %s" % (length, name))
    print(f"programs in apps/, lines of code (a lesson has up to {LESSON_PLAN})")
    for path, code in lessons:
        print("  %5d %s" % (code, path))


main()
