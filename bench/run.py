#!/usr/bin/env python3
"""Compares tandem with the peers that this machine has, in one run.

All peers of a job are started, stay alive, and run in interleaved rounds, one at a time, so that a
noisy neighbour hits them alike. Reported: the median over rounds of each round's median step, the
range, and the ratio of tandem's rate to the best PyTorch's. A job may also be a program that prints
a table: lines of fields separated by tabs, the first of which names the columns; or one whose text is kept as it is.

usage: run.py BUILD_DIR [--only "resnet18 b32, wine"] [--save FILE] [--rounds N] [--seconds N]
"""
import argparse
import collections
import ctypes.util
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import chart

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.join(HERE, "torch_peer.py")
TORCH_DDP = os.path.join(HERE, "torch_ddp_peer.py")
TORCH_MESH = os.path.join(HERE, "torch_mesh_peer.py")
TORCH_GPT = os.path.join(HERE, "torch_gpt_peer.py")
PICTURES = os.environ.get("TANDEM_PICTURES", "")  # FOLDER/CLASS/picture.jpg
WINE = os.path.join(HERE, "..", "data", "wine.csv")

# ---- the jobs are data: a new comparison is a new entry here ----

# What tandem can compute in: name, bench_step's settings.
MODES = {
    "fp32": ["precision=fp32"],
    "fp32 winograd": ["precision=fp32", "winograd=1"],
    "bf16x3": ["precision=bf16x3"],
    "bf16": ["precision=bf16"],
}
# What PyTorch can: name, torch_peer.py's layout and precision, and whether with a better allocator.
TORCH_MODES = {
    "fp32": ("nchw", "fp32", False),
    "fp32 channels_last": ("nhwc", "fp32", False),
    "fp32 channels_last, tuned": ("nhwc", "fp32", True),
    "bf16": ("nchw", "bf16", False),
    "bf16 channels_last": ("nhwc", "bf16", False),
}
Step = collections.namedtuple("Step", "key title model stem size classes batch steps modes torch")
ALL, FP32 = list(MODES), ["fp32"]
LAST, SOME = ["fp32 channels_last"], ["fp32 channels_last", "fp32 channels_last, tuned",
                                      "bf16 channels_last"]
STEPS = [
    Step("resnet18 b256", "ResNet-18, 32x32, batch 256", "resnet18", "imagenet", 32, 10, 256, 3,
         ALL, list(TORCH_MODES)),
    Step("resnet18 b64", "ResNet-18, 32x32, batch 64", "resnet18", "imagenet", 32, 10, 64, 6,
         ALL, SOME),
    Step("resnet18 b32", "ResNet-18, 32x32, batch 32", "resnet18", "imagenet", 32, 10, 32, 10,
         ALL, SOME),
    Step("resnet18 cifar b128", "ResNet-18, CIFAR stem, 32x32, batch 128", "resnet18", "cifar", 32,
         10, 128, 1, ALL, SOME),
    Step("resnet50 b16", "ResNet-50, 224x224, batch 16", "resnet50", "imagenet", 224, 1000, 16, 1,
         ALL, SOME),
]

# A GPT's parts: words, title, what a step has, and bench_gpt's arguments but for threads and precision.
Part = collections.namedtuple("Part", "key title unit per_step steps arguments precisions")
GPT = [
    Part("nano", "gpt-nano, 12 x 64 tokens, training step", "tokens/s", 768, 10, "train gpt-nano 12 64", "fp32 bf16"),
    Part("mini", "gpt-mini, 8 x 256 tokens, training step", "tokens/s", 2048, 1, "train gpt-mini 8 256", "fp32 bf16"),
    Part("124m", "GPT-2 124M, 4 x 64 tokens, training step", "tokens/s", 256, 1, "train gpt2 4 64", "fp32 bf16"),
    Part("attention t256", "attention, 8 x 6 heads, 256 tokens, 64 wide", "steps/s", 1, 5, "attention 8x6 256 64",
         "fp32 bf16"),
    Part("attention t1024", "attention, 1 x 12 heads, 1,024 tokens, 64 wide", "steps/s", 1, 5,
         "attention 1x12 1024 64", "fp32 bf16"),
    Part("write nano", "gpt-nano, a token from the cache", "tokens/s", 1, 200, "write gpt-nano 64 -", "fp32 bf16"),
    Part("write mini", "gpt-mini, a token from the cache", "tokens/s", 1, 50, "write gpt-mini 256 -", "fp32 bf16"),
    Part("write 124m", "GPT-2 124M, a token from the cache", "tokens/s", 1, 5, "write gpt2 256 -", "fp32 bf16"),
    Part("head", "the head, 1,024 rows of 768, 50,257 words", "steps/s", 1, 1, "head 1024 50257 768",
         "fp32 unfused"),
]


def tuned_environment():
    """An allocator that keeps what it has had: PyTorch's large blocks otherwise go back to the
    system after each step, and page faults are a tenth of its time."""
    for name in ("tcmalloc_minimal", "jemalloc"):
        library = ctypes.util.find_library(name)
        if library:
            return {"LD_PRELOAD": library}
    return {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
            "MALLOC_TOP_PAD_": str(64 << 20)}


def jobs(build, pythons, threads):
    def ours(name, *args, environment=None):
        return Command([os.path.join(build, "bench", name), *map(str, args)], environment or {})

    def torch(python, *args, tuned=False):
        return Command([python, TORCH, *map(str, args)], tuned_environment() if tuned else {})

    result = []
    for s in STEPS:
        common = ["model=" + s.model, "stem=" + s.stem, "size=%d" % s.size,
                  "classes=%d" % s.classes, "batch=%d" % s.batch]
        peers = {"tandem " + mode: ours("bench_step", *common, "threads=%d" % threads, *MODES[mode])
                 for mode in s.modes}
        for label, python in pythons.items():
            # The newest beside Debian's: only what may be the fastest.
            for mode in s.torch if python == pythons["PyTorch"] else [m for m in SOME if m in s.torch]:
                layout, precision, tuned = TORCH_MODES[mode]
                peers["%s %s" % (label, mode)] = torch(
                    python, "step", s.model, s.stem, s.size, s.classes, s.batch, threads, layout,
                    precision, tuned=tuned)
        result.append({"key": s.key, "title": s.title + ", training step", "unit": "images/s",
                       "per_step": s.batch, "warmup": 1 if s.steps == 1 else 3, "steps": s.steps,
                       "peers": peers})
    result.append({
        "key": "ranks", "title": "ResNet-18, 32x32, batch 256: two ranks beside two threads",
        "unit": "images/s", "per_step": 256, "warmup": 3, "steps": 3,
        "peers": {"tandem fp32, 2 threads": ours("bench_step", "threads=2"),
                  "tandem fp32, 2 ranks of 1 thread": ours("bench_step", "threads=1", "ranks=2")}})
    # What --trace costs: the same job without and with it.
    for ranks, how in ((1, "2 threads"), (2, "2 ranks of 1 thread")):
        step = ("batch=32", "ranks=%d" % ranks, "threads=%d" % (3 - ranks))
        result.append({
            "key": "trace", "title": "ResNet-18, 32x32, batch 32, %s: a trace is written" % how,
            "unit": "images/s", "per_step": 32, "warmup": 3, "steps": 10,
            "peers": {"tandem fp32": ours("bench_step", *step),
                      "tandem fp32, trace": ours("bench_step", *step, "trace=%s/bench/trace-%d.json" % (build, ranks))}})
    # The same pictures in all: one core, both cores in one process, and a rank on each.
    result.append({
        "key": "ranks b256", "title": "ResNet-18, 32x32: two ranks of batch 256 beside one core",
        "unit": "images/s", "per_step": 512, "warmup": 2, "steps": 2,
        "peers": {"tandem fp32, 1 thread": ours("bench_step", "batch=512", "threads=1"),
                  "tandem fp32, 2 threads": ours("bench_step", "batch=512", "threads=2"),
                  "tandem fp32, 2 ranks of 1 thread": ours("bench_step", "batch=512", "threads=1",
                                                           "ranks=2")}})
    for batch, steps in ((256, 2), (32, 10)):
        result.append({
            "key": "ddp b%d" % batch,
            "title": "ResNet-18, 32x32: DDP, two ranks of one thread and batch %d" % batch,
            "unit": "images/s", "per_step": 2 * batch, "warmup": 3, "steps": steps,
            "peers": {"tandem fp32": ours("bench_step", "batch=%d" % (2 * batch), "threads=1",
                                          "ranks=2"),
                      **{"%s gloo, %s" % (label, layout): Command([python, TORCH_DDP, "2",
                                                                   str(batch), layout])
                         for label, python in pythons.items() for layout in ("nchw", "nhwc")}}})
    # Ranks of one thread each; the same job as a pipeline, and cut into slices.
    for key, title, sizes, one, ways, theirs in (
            ("mesh pipeline", "8 blocks of 256, 8 x 256 rows: two stages beside one rank", [8, 256, 256, 8],
             ["pieces", "split"], ["gpipe", "1f1b", "zb"], ["gpipe", "1f1b"]),
            ("mesh slices", "4 blocks of 512, 512 rows: slices on two ranks beside one rank", [4, 512, 512, 1],
             ["pieces", "slices:8"], ["slices:0", "slices:8"], ["slices"])):
        result.append({
            "key": key, "title": title + ", fp32", "unit": "rows/s", "per_step": sizes[2] * sizes[3],
            "warmup": 3, "steps": 3,
            "peers": {**{"tandem %s, %d rank%s" % (how, ranks, "s" if ranks > 1 else ""):
                         ours("bench_mesh", how, ranks, *sizes)
                         for ranks, hows in ((1, one), (2, ways)) for how in hows},
                      **{"%s %s, %d rank%s" % (label, how, ranks, "s" if ranks > 1 else ""):
                         Command([python, TORCH_MESH, how, str(ranks), *map(str, sizes)])
                         for label, python in pythons.items()
                         for ranks, hows in ((1, ["pieces"]), (2, theirs)) for how in hows}}})
    result.append({
        "key": "wine", "title": "wine, batch 32, loader included", "unit": "steps/s", "per_step": 5,
        "warmup": 20, "steps": 40,
        "peers": {"tandem fp32": ours("bench_wine", WINE),
                  **{label + " fp32": torch(python, "wine", WINE)
                     for label, python in pythons.items()}}})
    if PICTURES:
        result.append({
            "key": "pictures load", "unit": "images/s", "per_step": 480, "warmup": 1, "steps": 1,
            "title": "JPEGs decoded, RandomResizedCrop 224, flipped, normalised, two workers",
            "peers": {"tandem": ours("bench_pictures", PICTURES, 2),
                      **{"%s torchvision" % label: torch(python, "pictures", PICTURES, 2)
                         for label, python in pythons.items()}}})
        result.append({"key": "pictures train", "title": "ResNet-50 trained on pictures, two workers",
                       "text": ours("bench_pictures", PICTURES, 2, 8)})
    for p in GPT:
        line = p.arguments.split() + [str(threads)]
        for precision in ["fp32"] if "unfused" in p.precisions else p.precisions.split():
            names = p.precisions.split() if "unfused" in p.precisions else [precision]
            result.append({
                "key": "gpt %s %s" % (p.key, precision), "title": "%s, %s" % (p.title, precision), "unit": p.unit,
                "per_step": p.per_step, "warmup": 2, "steps": p.steps, "seconds": 8,
                "peers": {**{"tandem " + name: ours("bench_gpt", *line, name) for name in names},
                          **{"%s %s" % (label, how): Command([python, TORCH_GPT, *line, precision, how])
                             for label, python in pythons.items() for how in ("eager", "compiled")}}})
    if os.environ.get("TANDEM_LLMC") or os.environ.get("TANDEM_LLAMA2C"):
        result.append({"key": "gpt c", "title": "llm.c's and llama2.c's CPU programs",
                       "text": Command([sys.executable, os.path.join(HERE, "gpt_c_peers.py"), build,
                                        str(threads)])})
    result.append({"key": "ops", "title": "single operations, fp32",
                   "table": ours("bench_ops", threads, 0.3)})
    result.append({"key": "evaluation", "title": "models without gradients, fp32",
                   "table": ours("bench_evaluate", threads)})
    result.append({"key": "allreduce", "title": "all-reduce between two ranks of this host",
                   "text": Command([sys.executable, os.path.join(HERE, "allreduce.py"), build,
                                    "--rounds", "3"])})
    # Seed 24: random shapes, the same in every run.
    result.append({"key": "sweep conv", "title": "convolutions of random shapes beside oneDNN, fp32",
                   "text": ours("bench_conv_sweep", 40, 24, 20)})
    result.append({"key": "sweep gemm", "title": "matrix products beside oneDNN, fp32",
                   "text": ours("bench_gemm_sweep")})
    for batch in (1, 32):
        result.append({"key": "layers b%d" % batch, "text": ours("bench_layers_sweep", batch),
                       "title": "the models' convolutions beside oneDNN, fp32, batch %d" % batch})
    return result


# ---- running ----

Command = collections.namedtuple("Command", "line environment", defaults=[{}])


class Peer:
    def __init__(self, name, command):
        self.name, self.medians, self.rss_kb = name, [], 0
        begin = time.perf_counter()
        self.process = subprocess.Popen(command.line, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **command.environment})
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            self.process.kill()
            raise RuntimeError("%s did not start" % name)
        self.facts = line[6:].strip()
        self.go(1)
        self.first_step = time.perf_counter() - begin

    def go(self, steps):
        self.process.stdin.write("go %d\n" % steps)
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if "|" not in line:
            raise RuntimeError("%s ended in the middle" % self.name)
        times, facts = line.split("|")
        self.rss_kb = max(self.rss_kb, int(facts.split()[1]))
        return [float(t) for t in times.split()]

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def start_peers(job):
    peers = []
    for name, command in job["peers"].items():
        try:
            peers.append(Peer(name, command))
        except (RuntimeError, OSError) as error:
            if name.startswith("tandem"):
                raise
            print("  not here: %s (%s)" % (name, error), flush=True)
    return peers


def compare(job, rounds, seconds):
    """At most `rounds` rounds, and no more after `seconds`, but at least three."""
    peers = start_peers(job)
    try:
        for peer in peers:
            peer.go(job["warmup"])
        begin = time.perf_counter()
        for done in range(rounds):
            if done >= 3 and time.perf_counter() - begin > seconds:
                break
            for peer in peers:
                peer.medians.append(statistics.median(peer.go(job["steps"])))
    finally:
        for peer in peers:
            peer.end()
    rows = []
    for peer in peers:
        rate = [job["per_step"] * 1e3 / ms for ms in peer.medians]
        rows.append({"peer": peer.name, "facts": peer.facts, "rounds": len(rate),
                     "step_ms": statistics.median(peer.medians),
                     "rate": statistics.median(rate), "low": min(rate), "high": max(rate),
                     "first_step_s": peer.first_step, "rss_anon_mib": peer.rss_kb / 1024})
    return {"job": job["title"], "key": job["key"], "unit": job["unit"], "rows": rows,
            **ratios(rows)}


def ratios(rows):
    """Of each of tandem's ways, to the best PyTorch; without one, to tandem's first."""
    torch = [row["rate"] for row in rows if row["peer"].startswith("PyTorch")]
    base = max(torch) if torch else rows[0]["rate"]
    of = "the best PyTorch" if torch else rows[0]["peer"]
    return {"against": of, "ratio": {row["peer"]: row["rate"] / base for row in rows
                                     if row["peer"].startswith("tandem")}}


def run_table(job):
    """None if the program is not there."""
    command = job["table"]
    if not os.path.exists(command.line[0]):
        return None
    done = subprocess.run(command.line, stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, **command.environment})
    lines = done.stdout.splitlines()
    notes = [line[1:].strip() for line in lines if line.startswith("#")]
    fields = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {"job": job["title"], "key": job["key"], "notes": notes, "columns": fields[0],
            "table": fields[1:]}


def run_text(job):
    """What a program prints, as it is. None if it is not there or fails."""
    command = job["text"]
    if not os.path.exists(command.line[0]):
        return None
    done = subprocess.run(command.line, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, **command.environment})
    if done.returncode != 0:
        print("  %s: failed with code %d" % (command.line[0], done.returncode), flush=True)
        return None
    return {"job": job["title"], "key": job["key"], "text": done.stdout.strip()}


def run(job, options):
    if "table" in job:
        return run_table(job)
    if "text" in job:
        return run_text(job)
    return compare(job, options.rounds, min(options.seconds, job.get("seconds", options.seconds)))


# ---- printing ----

def describe(result):
    lines = ["### %s" % result["job"], ""]
    if "text" in result:
        return "\n".join(lines + ["```", result["text"], "```"]) + "\n"
    if "table" in result:
        lines += result["notes"] + [""] if result["notes"] else []
        lines += ["| " + " | ".join(result["columns"]) + " |", "|---" * len(result["columns"]) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in result["table"]]
        return "\n".join(lines) + "\n"
    lines += ["| engine | median step ms | %s | range | start to first step s | anonymous MiB |"
              % result["unit"], "|---|---|---|---|---|---|"]
    for row in result["rows"]:
        lines.append("| %s (%s) | %.3f | %.0f | %.0f - %.0f | %.2f | %.0f |" % (
            row["peer"], row["facts"], row["step_ms"], row["rate"], row["low"], row["high"],
            row["first_step_s"], row["rss_anon_mib"]))
    lines += ["", "Against %s: %s" % (result["against"], ", ".join(
        "%s **%.2f**" % item for item in result["ratio"].items()))]
    return "\n".join(lines) + "\n"


def cpu_name():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")),
                    platform.machine())


def chosen(key, only):
    """Whether all words of one of the alternatives are in the job's key: "resnet18 b32, wine"."""
    alternatives = [a.split() for a in only.split(",") if a.strip()]
    return not alternatives or any(set(words) <= set(key.split()) for words in alternatives)


def save(path, head, results):
    stem = os.path.splitext(path)[0]
    pictures = chart.draw(results, stem + ".svg")
    with open(path, "w") as f:
        f.write(head + "\n")
        if pictures:
            f.write("![the rates, beside the best PyTorch's](%s)\n\n"
                    % os.path.basename(stem + ".svg"))
        f.write("\n".join(describe(r) for r in results))
    with open(stem + ".json", "w") as f:
        json.dump(results, f, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build")
    parser.add_argument("--only", default="", help='"resnet18 b32, wine": jobs with such words')
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=45, help="for the rounds of a job")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default="", help="one that has PyTorch")
    parser.add_argument("--newest", default="", help="another one, with a newer PyTorch")
    parser.add_argument("--save", help="write the tables and, beside them, figures and a picture")
    options = parser.parse_args()
    pythons = {"PyTorch": options.python or "/usr/bin/python3"}
    if options.newest and os.path.exists(options.newest):
        pythons["PyTorch (newest)"] = options.newest
    head = "# make bench, %s\n\n%s, %d CPUs, %s. Medians of interleaved rounds.\n" % (
        datetime.date.today(), cpu_name(), os.cpu_count(), platform.system())
    print(head, flush=True)
    results = []
    for job in jobs(options.build, pythons, options.threads):
        if chosen(job["key"], options.only):
            result = run(job, options)
            if result is not None:
                results.append(result)
                print(describe(result), flush=True)
    if options.save:
        save(options.save, head, results)
    return 0 if results else "no job has the words '%s'" % options.only


if __name__ == "__main__":
    sys.exit(main())
