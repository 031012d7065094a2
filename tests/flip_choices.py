#!/usr/bin/env python3
"""Turns every choice of a CPU's cache file (tensor/tune/store.h) into the other one.

usage: flip_choices.py FILE
"""
import sys
import zlib

with open(sys.argv[1], "rb") as file:
    lines = file.read().splitlines()
kept = lines[:2]
for head, text in zip(lines[2::2], lines[3::2]):
    key = head.split(b" ", 3)[3]
    text = b"direct" if text.startswith(b"winograd") else b"winograd"
    kept += [b"plan %d %08x %s" % (len(text), zlib.crc32(text), key), text]
with open(sys.argv[1], "wb") as file:
    file.write(b"\n".join(kept) + b"\n")
