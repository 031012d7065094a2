#!/usr/bin/env python3
"""Compares tandem with the peers that this machine has, in one run.

All peers of a job are started, stay alive, and run in interleaved rounds, one at a time, so that a
noisy neighbour hits them alike. Reported: the median over rounds of each round's median step, the
range, and the ratio of the best peer's to ours. usage: run.py BUILD_DIR [--save FILE] [--rounds N]
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.join(HERE, "torch_peer.py")
WINE = os.path.join(HERE, "..", "data", "wine.csv")


def jobs(build, python, threads):
    """The jobs are data: a new comparison is a new entry here."""
    def ours(name, *args):
        return [os.path.join(build, "bench", name), *map(str, args)]

    def torch(*args):
        return [python, TORCH, *map(str, args)]

    result = []
    for batch, steps in ((256, 4), (32, 12)):
        result.append({
            "name": "ResNet-18, 32x32, batch %d, fp32, training step" % batch,
            "unit": "images/s", "per_step": batch, "warmup": 3, "steps": steps,
            "peers": {"tandem": ours("bench_resnet18", batch, threads),
                      "PyTorch": torch("resnet18", batch, threads, "nchw"),
                      "PyTorch channels_last": torch("resnet18", batch, threads, "nhwc")}})
    result.append({
        "name": "wine, batch 32, loader included", "unit": "steps/s", "per_step": 5,
        "warmup": 20, "steps": 40,
        "peers": {"tandem": ours("bench_wine", WINE), "PyTorch": torch("wine", WINE, 1)}})
    return result


class Peer:
    def __init__(self, name, command):
        self.name, self.medians, self.rss_kb = name, [], 0
        begin = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
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
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        self.process.wait(timeout=60)


def compare(job, rounds):
    peers = []
    try:
        for name, command in job["peers"].items():
            try:
                peers.append(Peer(name, command))
            except (RuntimeError, OSError) as error:
                if name == "tandem":
                    raise
                print("  %s: not here (%s)" % (name, error))
        for peer in peers:
            peer.go(job["warmup"])
        for _ in range(rounds):
            for peer in peers:
                peer.medians.append(statistics.median(peer.go(job["steps"])))
    finally:
        for peer in peers:
            peer.end()
    rows = []
    for peer in peers:
        rate = [job["per_step"] * 1e3 / ms for ms in peer.medians]
        rows.append({"peer": peer.name, "facts": peer.facts,
                     "step_ms": statistics.median(peer.medians),
                     "rate": statistics.median(rate), "low": min(rate), "high": max(rate),
                     "first_step_s": peer.first_step, "rss_anon_mib": peer.rss_kb / 1024})
    others = [row["rate"] for row in rows if row["peer"] != "tandem"]
    ratio = rows[0]["rate"] / max(others) if others else None
    return {"job": job["name"], "unit": job["unit"], "rows": rows, "ratio": ratio}


def table(result):
    lines = ["### %s" % result["job"], "",
             "| engine | median step ms | %s | range | start to first step s | anonymous MiB |"
             % result["unit"], "|---|---|---|---|---|---|"]
    for row in result["rows"]:
        lines.append("| %s (%s) | %.3f | %.0f | %.0f - %.0f | %.2f | %.0f |" % (
            row["peer"], row["facts"], row["step_ms"], row["rate"], row["low"], row["high"],
            row["first_step_s"], row["rss_anon_mib"]))
    if result["ratio"] is not None:
        lines += ["", "tandem against the best peer: **%.2f times**" % result["ratio"]]
    return "\n".join(lines) + "\n"


def cpu_name():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")),
                    platform.machine())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--only", default="", help="only jobs whose name contains this")
    parser.add_argument("--save", help="write the tables and, beside them, the figures as JSON")
    options = parser.parse_args()
    text = "# make bench, %s\n\n%s, %d CPUs, %s. Medians of %d interleaved rounds.\n" % (
        datetime.date.today(), cpu_name(), os.cpu_count(), platform.system(), options.rounds)
    print(text, flush=True)
    results = []
    for job in jobs(options.build, options.python, options.threads):
        if options.only in job["name"]:
            results.append(compare(job, options.rounds))
            print(table(results[-1]), flush=True)
    if options.save:
        with open(options.save, "w") as f:
            f.write(text + "\n" + "\n".join(table(r) for r in results))
        with open(os.path.splitext(options.save)[0] + ".json", "w") as f:
            json.dump(results, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
