#!/usr/bin/env python3
"""make sizes: lines of code (no blanks, no comments) by folder next to the plan, and what changed since a commit.

usage: sizes.py [COMMIT]     (without one: where this branch left main, or the commit before the last)

Exits with 1 if a folder is larger than its plan, has no plan, or a file, a function, a struct or a lesson is longer
than the rules of CONTRIBUTING.md allow.
"""
import io
import os
import re
import subprocess
import sys
import tarfile
from collections import defaultdict

# The budget. Each row: its folders ("room/*": with all that is below it, but for what has a row of its own), the
# plan, and the limit where the folder is still above it, with the reason. Whoever needs more lines than the plan
# changes it here, in the same commit, and says in its message what a user would miss without them.
PLAN = [
    ("tensor", 3410, 3467, "a thread of many reserves its share of addresses; ranks that are threads end as one, and trim the heap one by one"),
    ("tensor/kernels", 900, 907, "a product that adds a residual, and the residual's gradient in 16 bits"),
    ("tensor/cpu", 12290),
    ("tensor/cuda", 8300, 8370, "a GPT's layer in 25 launches: products add residuals, norms write 16 bits, a gradient is rounded and its columns added up in one pass"),
    ("tensor/*", 3390, 3791, "replacing files safely (system/) is twice what it was; a file in memory; kinds of files, names in the environment, words that are alike; texts and linked lists of dist"),
    ("autograd", 1610, 1624, "backward in two halves, without which a pipeline has bubbles; results are observed; a linear layer and its residual"),
    ("autograd/ops", 3870, 3916, "a linear layer adds its residual; norms for products"),
    ("autograd/*", 260),
    ("nn", 2050, 2377, "deferred parameters are asked for where a tensor is made, drawn, moved and listed; frozen ones; links of a chain; a linear layer and its residual"),
    ("nn/shared", 642),
    ("nn/models", 1310, 1386, "a GPT is a chain with a head of its own, holds bf16 weights, and writes from stages and slices; its branches end with their residual"),
    ("nn/models/zoo", 505),
    ("nn/models/files", 170, 585, "GPT files of other programs, read and written; to be cut"),
    ("nn/extra", 2030, 2245, "low-rank adapters, also of a model in stages and slices"),
    ("nn/io", 2380, 2545, "a model may be on several stages, cut into slices and windows, and its file is one; files of adapters and of GPTs are read and written by it, too"),
    ("nn/onnx", 1140),
    ("nn/optim", 880, 890, "schedules and clipping over stages and slices"),
    ("data/*", 4920, 5130, "labels and positions of loaders, to be divided; images by stb_image"),
    ("data/text", 500, 1045, "BPE and its files, token files of other programs; to be cut"),
    ("dist", 350),
    ("dist/comm/engines/sim", 500, 1054, "costs of kernels from a file, failures that do not depend on luck, deadlocks; to be cut"),
    ("dist/comm/*", 11700, 12233, "five ways to meet, and restarts, are in store and launch; messages have names; worlds that follow each other; a rank may be a thread"),
    ("dist/ddp", 1047),
    ("dist/ddp/extra", 1108),
    ("dist/shard", 1185, 1186, "the settings of ZeRO, which td_ddp does not know, are checked and said here"),
    ("dist/slices", 560, 929, "VOCAB and SEQUENCE: a vocabulary, and rows, beyond a rank's memory"),
    ("dist/pipeline", 600, 1489, "leaves over stages, messages asked for ahead, cutting by work, forward alone, and drawings are half of it"),
    ("dist/leaves", 880, 998, "a leaf may be a micro-batch: backwards in halves, of parts of a model"),
    ("dist/elastic", 920),
    ("dist/dp", 650),
    ("dist/sync_bn", 340),
    ("dist/graph", 100),
    ("dist/trace", 330),
    ("apps", 3700, 3835, "lessons 18 to 24"),
    ("apps/library", 130),
    ("apps/tools/*", 6200, 7390, "comparing runs, leaves, meshes, virtual and simulated ranks, runs that go on when processes die, with shards; to be cut"),
    ("apps/tools/report", 900, 1465, "figures that need no JavaScript; a server of the page while a run trains"),
]
PRODUCT_PLAN, PRODUCT_LIMIT = 79000, 88490
ROOTS = ("tensor", "autograd", "nn")  # what a learner reads first
ROOTS_PLAN, ROOTS_LIMIT = 7600, 7600  # 24: options in C++20

PUBLIC_PLAN, PUBLIC_LIMIT = 200, 230
# Families of operations, one line each: a reader looks one up, and need not know the others.
FAMILIES = re.compile(r"autograd/(ops/(elements|shapes)|attention|losses|norms|windows|attention)\.h")
LONG_FILE, LONG_FUNCTION, LONG_STRUCT = 500, 60, 20
# A lesson is one program to be read from above to below: 200 lines of code, in functions of up to 120 lines.
LESSON_PLAN, LESSON_FUNCTION = 200, 120
TOOLS_IN_APPS = {"apps/cifar_resnet18.c"}
ROOMS = ["tensor", "autograd", "nn", "data", "dist", "apps"]
BESIDE = ["tests", "bench", "examples"]
ENDINGS = (".c", ".h", ".inc", ".def", ".cu", ".cuh", ".cc")

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


def structs(text):
    """(name, fields) of each struct. A struct inside counts as one field, as does an included list."""
    text = re.sub(r"^\s*#\s*include[^\n]*", "int included;", without_comments(text), flags=re.M)
    text = re.sub(r"^\s*#(?:\\\n|[^\n])*", "", text, flags=re.M)
    text = re.sub(r"\)\s*:[^;{}]*(?=\{)", ")", text)  # what a constructor sets
    for begin in re.finditer(r"\bstruct\s*(\w*)\s*\{", text):
        depth, fields, parens = 1, 0, 0
        for end in range(begin.end(), len(text)):
            c = text[end]
            depth += (c == "{") - (c == "}")
            parens += (c in "([") - (c in ")]")
            fields += depth == 1 and parens == 0 and c in ",;"
            if depth == 0:
                break
        yield begin.group(1) or re.match(r"\}\s*(\w*)", text[end:]).group(1) or "unnamed", fields


def sources(folder):
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(ENDINGS) and not os.path.islink(os.path.join(path, name)):
                with open(os.path.join(path, name), encoding="utf-8") as file:
                    yield os.path.join(path, name), file.read()


def git(*arguments):
    """What git prints, or None if there is no git, or it fails."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def base_commit():
    """Where this branch left main; on main itself, the commit before the last."""
    head = git("rev-parse", "HEAD")
    for main_branch in ("origin/main", "main"):
        base = git("merge-base", "HEAD", main_branch)
        if base and (base != head or git("status", "--porcelain")):
            return base.decode().strip()
    return "HEAD~1"


def sizes_at(commit):
    """Lines of code by folder in a commit, or None."""
    rooms = [room for room in ROOMS + BESIDE if git("cat-file", "-e", f"{commit}:{room}") is not None]
    archive = git("archive", commit, *rooms) if rooms else None
    if archive is None:
        return None
    sizes = defaultdict(int)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(ENDINGS):
                sizes[os.path.dirname(member.name)] += count_code(tar.extractfile(member).read().decode())
    return sizes


def public_functions(*headers):
    """{header: names} of the functions that these headers declare, and those that they include."""
    command = os.environ.get("CC", "cc").split() + ["-E", "-I.", "-x", "c", "-"]
    source = "".join(f'#include "{header}"\n' for header in headers)
    texts, ours = defaultdict(str), None
    for line in subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout.split("\n"):
        place = re.match(r'# \d+ "([^"]+)"', line)
        if place:
            ours = None if place.group(1).startswith(("/", "<")) else os.path.normpath(place.group(1))
        elif ours and not line.startswith("#"):
            texts[ours] += line + "\n"
    seen, found = set(), defaultdict(list)
    for header, text in texts.items():
        changes = 1
        while changes:  # bodies, from the inside out
            text, changes = re.subn(r"\{[^{}]*\}", ";", text)
        for declaration in text.split(";"):
            declaration = re.sub(r"__attribute__\s*\(\(.*?\)\)+", "", declaration, flags=re.S).strip()
            name = re.match(r"[\w\s*]*?\b\(?(td_\w+)\)?\s*\((?!\s*\*)", declaration)
            if name and not declaration.startswith(("typedef", "static")) and name.group(1) not in seen:
                seen.add(name.group(1))
                found[header].append(name.group(1))
    return found


def row_of(folder):
    """The row of PLAN that a folder belongs to: its own, or that of the nearest folder above with a "*"."""
    names = {row[0]: row for row in PLAN}
    if folder in names:
        return names[folder]
    while folder:
        if folder + "/*" in names:
            return names[folder + "/*"]
        folder = os.path.dirname(folder)
    return None


def change(now, before):
    return f"{now - before:+,}" if now != before else ""


def print_row(name, lines, plan="", limit="", difference=""):
    number = lambda n: f"{n:,}" if n != "" else ""
    print(f"  {name:<24} {lines:>7,} {number(plan):>7} {number(limit):>7} {difference:>7}".rstrip())


def print_folders(today, before, wrong):
    """The table: each row of the plan, and below it its folders if they are several."""
    rows = defaultdict(list)
    for folder in sorted(set(today) | set(before or {})):
        if folder.split("/")[0] in BESIDE:
            continue
        row = row_of(folder)
        if row:
            rows[row[0]].append(folder)
        elif today[folder]:
            wrong.append(f"{folder}/ has no row in the plan (scripts/sizes.py)")
    for row in PLAN:
        name, plan, limit = row[0], row[1], row[2] if len(row) > 2 else row[1]
        lines = sum(today[f] for f in rows[name])
        was = sum(before[f] for f in rows[name]) if before else lines
        if not lines and not was:
            continue
        print_row(name, lines, plan, limit if limit != plan else "", change(lines, was))
        if name.endswith("*"):
            for folder in rows[name]:
                print_row("  " + folder, today[folder],
                          difference=change(today[folder], before[folder]) if before else "")
        if lines > limit:
            wrong.append(f"{name} has {lines:,} lines of code; its plan is {limit:,}")


def check_files(wrong):
    """Counts all sources, and adds to `wrong` what is too long. Returns lines by folder, and of each lesson."""
    today, lessons = defaultdict(int), []
    for room in ROOMS + BESIDE:
        for path, text in sources(room):
            code = count_code(text)
            today[os.path.dirname(path)] += code
            if room in BESIDE:
                continue
            lesson = os.path.dirname(path) == "apps" and path.endswith(".c") and path not in TOOLS_IN_APPS
            if lesson:
                lessons.append((path, code))
                if code > LESSON_PLAN:
                    wrong.append(f"{path}: {code} lines of code; a lesson has up to {LESSON_PLAN}")
            if text.count("\n") > LONG_FILE:
                wrong.append(f"{path}: {text.count(chr(10))} lines; a file has up to {LONG_FILE}")
            for name, lines in functions(text):
                most = LESSON_FUNCTION if lesson else LONG_FUNCTION
                if lines > most:
                    wrong.append(f"{path}: {name} has {lines} lines; a function has up to {most}")
            for name, fields in structs(text):
                if fields > LONG_STRUCT:
                    wrong.append(f"{path}: {name} has {fields} fields; a struct has up to {LONG_STRUCT}")
    return today, lessons


def main():
    wrong = []
    base = sys.argv[1] if len(sys.argv) > 1 else base_commit()
    before = sizes_at(base)
    if before is None and len(sys.argv) > 1:
        sys.exit(f"sizes: git has no commit {base}")
    today, lessons = check_files(wrong)
    short = (git("rev-parse", "--short", base) or b"").decode().strip()
    print("lines of code (no blanks, no comments)" + (f"; the last column: since {short}" if before else ""))
    print(f"  {'':<24} {'today':>7} {'plan':>7} {'limit':>7}")
    print_folders(today, before, wrong)
    product = lambda sizes: sum(n for f, n in sizes.items() if f.split("/")[0] in ROOMS)
    print_row("product", product(today), PRODUCT_PLAN, PRODUCT_LIMIT,
              change(product(today), product(before)) if before else "")
    if product(today) > PRODUCT_LIMIT:
        wrong.append(f"the product has {product(today):,} lines of code; its limit is {PRODUCT_LIMIT:,}")
    roots = sum(today[room] for room in ROOTS)
    print_row("roots: " + ", ".join(ROOTS), roots, ROOTS_PLAN, ROOTS_LIMIT,
              change(roots, sum(before[room] for room in ROOTS)) if before else "")
    if roots > ROOTS_LIMIT:
        wrong.append(f"the roots of {', '.join(ROOTS)} have {roots:,} lines of code; their limit is {ROOTS_LIMIT:,}")
    for room in BESIDE:
        of_room = lambda sizes: sum(n for f, n in sizes.items() if f.split("/")[0] == room)
        print_row(room, of_room(today), difference=change(of_room(today), of_room(before)) if before else "")
    above = [row for row in PLAN if len(row) > 2 and sum(n for f, n in today.items() if row_of(f) == row) > row[1]]
    print(f"above the plan, within a limit: {len(above)}")
    for name, plan, limit, reason in above:
        print(f"  {name}: {reason}")
    public = {header: len(names) for header, names in public_functions("tandem.h").items()}
    families = {header: n for header, n in public.items() if FAMILIES.fullmatch(header)}
    single = sum(public.values()) - sum(families.values())
    print(f"public functions: {single} (plan: about {PUBLIC_PLAN}), and {sum(families.values())} operations in "
          "families: " + ", ".join(f"{h} {n}" for h, n in families.items()))
    if single > PUBLIC_LIMIT:
        wrong.append(f"tandem.h reaches {single} public functions; their limit is {PUBLIC_LIMIT}")
    print(f"lessons, lines of code (up to {LESSON_PLAN}): "
          + ", ".join(f"{os.path.basename(path)} {n}" for path, n in lessons))
    for text in wrong:
        print("FAIL  " + text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
