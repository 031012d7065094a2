#!/usr/bin/env python3
"""A model's weights in checkpoints, without all else that a checkpoint says.

usage: weights.py hash FILE            of all parameters and running statistics
       weights.py apart FILE FILE      the largest difference of two, relative to the largest weight
"""
import hashlib
import json
import struct
import sys


def tensors(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    for name in sorted(header):
        if name != "__metadata__" and not name.startswith(("optimizer.", "ema.")):
            begin, end = header[name]["data_offsets"]
            yield name, data[begin:end]


def floats(data):
    return struct.unpack("<%df" % (len(data) // 4), data)


if sys.argv[1] == "hash":
    digest = hashlib.sha256()
    for name, data in tensors(sys.argv[2]):
        digest.update(name.encode() + b"\0" + data)
    print(digest.hexdigest())
else:
    worst = 0.0
    for (name, a), (other, b) in zip(tensors(sys.argv[2]), tensors(sys.argv[3])):
        assert name == other
        a, b = floats(a), floats(b)
        scale = max(map(abs, a)) or 1.0
        worst = max(worst, max(abs(x - y) for x, y in zip(a, b)) / scale)
    print("%.3e" % worst)
