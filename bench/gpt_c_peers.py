#!/usr/bin/env python3
"""llm.c's and llama2.c's CPU programs next to tandem, with random weights in their files.

usage: gpt_c_peers.py BUILD_DIR THREADS     TANDEM_LLMC, TANDEM_LLAMA2C: folders with train_gpt2.c and run.c
"""
import array
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile

BLOCK = array.array("f", (random.gauss(0, 0.02) for _ in range(1 << 16))).tobytes()


def write(path, head, floats):
    with open(path, "wb") as f:
        f.write(head)
        for _ in range(floats * 4 // len(BLOCK)):
            f.write(BLOCK)
        f.write(BLOCK[:floats * 4 % len(BLOCK)])


def build(source, to, threads):
    subprocess.run(["gcc", "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w", "-I", os.path.dirname(source),
                    source, "-lm", "-o", to], check=True)
    return {**os.environ, "OMP_NUM_THREADS": threads}


def tandem(program, line, steps):
    """Milliseconds of a step of bench_gpt."""
    peer = subprocess.Popen([program, *line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    peer.stdout.readline()
    out, _ = peer.communicate("go 2\ngo %d\n" % steps)
    return statistics.median(float(t) for t in out.splitlines()[1].split("|")[0].split())


def llmc(folder, program, threads, work):
    layers, words, padded, context, width = 12, 50257, 50304, 1024, 768
    env = build(os.path.join(folder, "train_gpt2.c"), os.path.join(work, "train_gpt2"), threads)
    head = struct.pack("256i", 20240326, 3, context, words, layers, 12, width, padded, *[0] * 248)
    write(os.path.join(work, "gpt2_124M.bin"), head,
          (padded + context + 2 + layers * (13 + 12 * width)) * width)
    data = os.path.join(work, "dev/data/tinyshakespeare")
    os.makedirs(data)
    for name in ("train", "val"):
        tokens = array.array("H", (random.randrange(words) for _ in range(1 << 16)))
        with open(os.path.join(data, "tiny_shakespeare_%s.bin" % name), "wb") as f:
            f.write(struct.pack("256i", 20240520, 1, len(tokens), *[0] * 253) + tokens.tobytes())
    peer = subprocess.Popen([os.path.join(work, "train_gpt2")], cwd=work, env=env, stdout=subprocess.PIPE, text=True)
    times = []
    for line in peer.stdout:
        took = re.search(r"took ([0-9.]+) ms", line)
        times += [float(took.group(1))] if took else []
        if len(times) == 4:
            break
    peer.kill()
    peer.wait()
    theirs = statistics.median(times[1:])
    for precision in ("fp32", "bf16"):
        ours = tandem(program, ["train", "gpt2", "4", "64", threads, precision], 3)
        print("124M, 4 x 64, training step: llm.c %.0f ms, tandem %s %.0f ms: %.2f times" %
              (theirs, precision, ours, theirs / ours), flush=True)


def llama2c(folder, program, threads, work):
    width, hidden, layers, heads, words, context = 288, 768, 6, 6, 32000, 256
    env = build(os.path.join(folder, "run.c"), os.path.join(work, "run"), threads)
    floats = (words + layers * (2 + 4 * width + 3 * hidden) + 1) * width + context * width // heads
    model = os.path.join(work, "stories.bin")
    write(model, struct.pack("7i", width, hidden, layers, heads, heads, words, context), floats)
    with open(os.path.join(work, "tokenizer.bin"), "wb") as f:
        f.write(struct.pack("i", 8))
        for token in range(words):
            f.write(struct.pack("fi", -token, 6) + b"%06x" % token)
    rates = []
    for _ in range(3):
        done = subprocess.run([os.path.join(work, "run"), model, "-n", "200", "-t", "1.0", "-s", "7"], cwd=work,
                              env=env, capture_output=True, text=True, errors="replace")
        rate = re.search(r"tok/s: ([0-9.]+)", done.stderr)
        rates += [float(rate.group(1))] if rate else []
    theirs = 1e3 / max(rates)
    for precision in ("fp32", "bf16"):
        ours = tandem(program, ["write", model, "100", "-", threads, precision], 100)
        print("15M Llama, a token: llama2.c %.3f ms, tandem with %s weights %.3f ms: %.2f times" %
              (theirs, precision, ours, theirs / ours), flush=True)


def main():
    folder, threads = sys.argv[1:]
    program = os.path.join(os.path.abspath(folder), "bench/bench_gpt")
    for name, peer in (("TANDEM_LLMC", llmc), ("TANDEM_LLAMA2C", llama2c)):
        if os.environ.get(name):
            with tempfile.TemporaryDirectory() as work:
                peer(os.environ[name], program, threads, work)
        else:
            print("%s names no folder with its source" % name)


main()
