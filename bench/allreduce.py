#!/usr/bin/env python3
"""All-reduce of f32 between the ranks of one host: tandem's engines and whom this machine has beside
them, in interleaved rounds of one run. Prints a table; each figure is the median over the rounds of a
round's median call, in microseconds.

usage: allreduce.py BUILD_DIR [--ranks N] [--rounds N] [--only WORD,...] [--json FILE]
"""
import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n"]


def peers(build, ranks, python):
    """Name to command; {rank} and {folder} in it stand for one process per rank and a place to meet."""
    worker = os.path.join(build, "bench", "bench_allreduce")
    by_rank = ["{rank}", str(ranks), "{folder}"]
    result = {
        "shm, registered": [worker, "shm", "registered", str(ranks)],
        "shm": [worker, "shm", "plain", str(ranks)],
        "gloo": [worker, "gloo", "plain", str(ranks)],
    }
    if shutil.which("mpirun"):
        result["mpi"] = MPIRUN + [str(ranks), worker, "mpi", "plain", str(ranks)]
    others = {"Open MPI itself": MPIRUN + [str(ranks), os.path.join(build, "bench", "peer_openmpi")],
              "Gloo itself": [os.path.join(build, "bench", "peer_gloo")] + by_rank}
    result.update({name: command for name, command in others.items()
                   if any(map(os.path.exists, command))})
    result["PyTorch, gloo"] = [python, os.path.join(HERE, "torch_allreduce.py")] + by_rank
    return result


def run(command, ranks):
    """One round: microseconds by bytes. None: it is not here."""
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as folder:
        count = ranks if "{rank}" in command else 1
        processes = [subprocess.Popen([part.format(rank=rank, folder=folder) for part in command],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, env=environment)
                     for rank in range(count)]
        ends = [process.communicate() for process in processes]
        for process, (_, errors) in zip(processes, ends):
            if process.returncode != 0:
                return None, (errors.strip().splitlines() or ["code %d" % process.returncode])[-1]
        lines = [line.split() for line in ends[0][0].splitlines()]
        return {int(size): float(time) for size, time in lines}, None


def compare(build, ranks, rounds, only, python):
    times, here = {}, peers(build, ranks, python)
    for index in range(rounds):
        for name, command in list(here.items()):
            if only and not any(word == name for word in only):
                continue
            figures, error = run(command, ranks)
            if figures is None:
                print("  %s: not here (%s)" % (name, error), file=sys.stderr)
                del here[name]
                times.pop(name, None)
                continue
            for size, time in figures.items():
                times.setdefault(name, {}).setdefault(size, []).append(time)
    return {name: {size: statistics.median(all_) for size, all_ in by_size.items()}
            for name, by_size in times.items()}


def size_text(size):
    return "%d KB" % (size >> 10) if size < 1 << 20 else "%d MB" % (size >> 20)


def number(time):
    return "%.1f" % time if time < 100 else "{:,.0f}".format(time)


def table(result):
    names = list(result)
    lines = ["| microseconds | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for size in sorted(next(iter(result.values()))):
        lines.append("| %s | " % size_text(size) +
                     " | ".join(number(result[name][size]) for name in names) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="some of the columns")
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--json", help="write the figures here, too")
    options = parser.parse_args()
    only = [word.strip() for word in options.only.split(";") if word.strip()]
    result = compare(options.build, options.ranks, options.rounds, only, options.python)
    print("%d ranks on %d CPUs, %s, %s; medians of %d rounds\n" % (
        options.ranks, os.cpu_count(), platform.system(), datetime.date.today(), options.rounds))
    print(table(result))
    if options.json:
        with open(options.json, "w") as f:
            json.dump(result, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
