#!/usr/bin/env python3
"""Prints the share of fused multiply-adds among the instructions of a function's innermost loop, in percent.

usage: multiply_adds.py OBJDUMP OBJECT FUNCTION

The loop is, of those that end in a jump back, the one that has the most multiply-adds, and of its
like the shortest.
"""
import re
import subprocess
import sys

FMA = re.compile(r"(fmla|bfdot|vfn?madd)")
JUMP = re.compile(r"(?:b\.\w+|cbnz|j\w+)\s+(?:\w+, )?([0-9a-f]+) <")

objdump, path, function = sys.argv[1:]
text = subprocess.run([objdump, "-d", "--no-show-raw-insn", f"--disassemble={function}", path],
                      capture_output=True, text=True, check=True).stdout
code = [(int(at, 16), what) for at, what in re.findall(r"^ *([0-9a-f]+):\s+(.*)$", text, re.M)]
loops = []
for end, what in code:
    jump = JUMP.match(what)
    begin = int(jump.group(1), 16) if jump else end + 1
    if begin <= end:
        body = [w for at, w in code if begin <= at <= end]
        adds = sum(FMA.match(w) is not None for w in body)
        loops.append((-adds, len(body)))
if not loops or min(loops)[0] == 0:
    sys.exit(f"{path}: no loop of multiply-adds in {function}")
adds, size = min(loops)
print(f"# {function}: {-adds} multiply-adds of {size} instructions", file=sys.stderr)
print(round(-100 * adds / size))
