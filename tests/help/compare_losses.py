"""Compares the epoch losses that a wine lesson printed (four digits) with PyTorch's.

usage: compare_losses.py OUTPUT GOLDEN COLUMN[,COLUMN...]      (the mean of these columns of GOLDEN)
"""
import re
import sys

output, golden, columns = sys.argv[1], sys.argv[2], [int(c) for c in sys.argv[3].split(",")]
ours = [float(m[1]) for m in map(re.compile(r"Epoch \d+, Loss: (\S+)$").match, open(output)) if m]
rows = [line.split() for line in open(golden) if not line.startswith("#")]
theirs = [sum(float(row[c]) for c in columns) / len(columns) for row in rows]
# Half a unit of the fourth digit is rounding; 5e-5 of the value is what sums in another order may do.
wrong = [(i, a, b) for i, (a, b) in enumerate(zip(ours, theirs)) if abs(a - b) > 5.001e-5 + 5e-5 * b]
print(f"{len(ours)} epochs; epochs that differ: {wrong}")
sys.exit(bool(wrong) or not len(ours) == len(theirs) == 100)
