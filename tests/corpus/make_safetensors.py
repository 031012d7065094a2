#!/usr/bin/env python3
"""Writes the seeds of fuzz_safetensors: a few right files and a few nearly right ones, each tiny.

usage: make_safetensors.py FOLDER
"""
import json
import pathlib
import struct
import sys


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def pack(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


two = {"a": entry("F32", [2], 0, 8), "b.weight": entry("F64", [1, 1], 8, 16)}
seeds = {
    "empty": pack({}),
    "one": pack({"weight": entry("F32", [2, 1], 0, 8)}, bytes(8)),
    "two": pack(two, bytes(16)),
    "padded": pack(json.dumps(two).encode() + b"   ", bytes(16)),
    "metadata": pack({"__metadata__": {"epoch": "3", "é\\\"\n": ""}, "n": entry("I64", [], 0, 8)}, bytes(8)),
    "zero_size": pack({"x": entry("F16", [0, 3], 0, 0), "y": entry("U8", [1], 0, 1)}, b"\1"),
    "unaligned": pack({"x": entry("U8", [3], 0, 3), "y": entry("BF16", [1], 3, 5)}, bytes(5)),
    "overlap": pack({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
    "hole": pack({"a": entry("I32", [1], 4, 8)}, bytes(8)),
    "huge_shape": pack({"a": entry("F32", [4294967296, 4294967296], 0, 0)}),
    "deep": pack(b'{"a":' + b"[" * 40 + b"]" * 40 + b"}"),
    "escapes": pack(b'{"\\u0041\\ud83d\\ude00":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4.0]}}', bytes(4)),
    "long_length": struct.pack("<Q", 1 << 63) + b"{}",
    "cut": pack(two, bytes(16))[:60],
}

folder = pathlib.Path(sys.argv[1])
for name, content in seeds.items():
    (folder / name).write_bytes(content)
