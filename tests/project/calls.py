#!/usr/bin/env python3
"""Who calls whom, read from the object files by nm: for test_arrows.sh, which prints what this prints as offenders.

usage: calls.py BUILD rooms      calls from a room into one that it does not stand on
       calls.py BUILD roots      calls from a room's root into its subfolders that are not in KNOWN
       calls.py BUILD circles    files of a room that reach each other in circles of more than two, but for KNOWN
       calls.py BUILD stale      lines of KNOWN that have no such call any more
       calls.py - selftest       the same on calls that are made up
"""
import os
import subprocess
import sys

ROOMS = ("tensor", "autograd", "nn", "data", "dist/comm", "dist")
BELOW = {"tensor": (), "autograd": ("tensor",), "nn": ("autograd", "tensor"), "data": ("tensor",),
         "dist/comm": ("tensor",), "dist": ("dist/comm", "nn", "autograd", "data", "tensor")}
# Part of its room's root, and called by every other room: what CPU and CUDA share, and the operating system.
IN_ROOT = ("tensor/kernels", "tensor/system")

# Calls that are allowed, "from -> to": first where a root opens what is in its subfolders, then those that close a
# circle. Each with its reason; the list may only shrink. "to" may be a folder.
KNOWN = {
    "tensor/backend.c -> tensor/cpu/": "the table of devices: the CPU's kernels",
    "tensor/backend.c -> tensor/cuda/": "the table of devices: CUDA",
    "tensor/device.c -> tensor/cpu/cpu_device.c": "threads are a property of CPU devices alone",
    "data/registry.c -> data/device/": "the table of batch makers",
    "dist/comm/registry.c -> dist/comm/engines/": "the table of engines",
    "dist/comm/group.c -> dist/comm/store/": "a group opens its store",
    "dist/comm/group.c -> dist/comm/engines/device.c": "a group chooses between a device's collectives and the host's",
    "dist/comm/collectives.c -> dist/comm/engines/device.c": "the same choice for each collective",
    "dist/comm/broken.c -> dist/comm/engines/device.c": "what runs on the device's stream must be aborted there",
    "dist/comm/watchdog.c -> dist/comm/engines/device.c": "a stream has no errors of its own: the watchdog asks",
    "dist/comm/work.c -> dist/comm/engines/": "waiting for a device's work, or for its copy to the host",
    "dist/comm/queue.c -> dist/comm/engines/staged.c": "a work owns its copy on the host",

    "tensor/cpu/conv_apply.c -> tensor/cpu/conv.c": "the taps of a convolution are counted in conv.c",
    "tensor/cpu/conv_apply_plan.c -> tensor/cpu/conv.c": "the same",
    "tensor/cpu/conv_bf16.c -> tensor/cpu/conv.c": "the same",
    "tensor/cpu/conv_bf16_reduce.c -> tensor/cpu/conv.c": "the same",
    "tensor/cpu/conv_classes.c -> tensor/cpu/conv.c": "the same",
    "tensor/cpu/conv_depthwise.c -> tensor/cpu/conv.c": "the same",
    "tensor/cpu/conv_reduce_plan.c -> tensor/cpu/conv.c": "the same",
    "tensor/cpu/conv_wino.c -> tensor/cpu/conv.c": "the same",
    "tensor/observe/watched.c -> tensor/observe/timed.c": "the observed table chooses between two clocks",
    "tensor/observe/watched.c -> tensor/observe/watch.c": "each observed call tells the watchers",
    "dist/ddp/ddp.c -> dist/ddp/extra/": "DDP opens what hangs on it",
    "dist/shard/wire.c -> dist/shard/values.c": "a shard's own part is known to values.c",
    "dist/shard/grads.c -> dist/shard/shard.c": "gradients ask for the state of the whole",
    "dist/comm/engines/p2p/messages.c -> dist/comm/engines/p2p/engine.c": "slots and failures are the engine's",
    "dist/comm/engines/p2p/reduce.c -> dist/comm/engines/p2p/collectives.c": "the ring uses the collectives' slots",
    "dist/comm/engines/p2p/collectives.c -> dist/comm/engines/p2p/engine.c": "slots and failures are the engine's",
}


def room_of(path):
    return next((room for room in ROOMS if path.startswith(room + "/")), None)


def is_root(path):
    return os.path.dirname(path) in ROOMS + IN_ROOT


def read_calls(build):
    """{(from, to): names} of the sources whose object files are there, and those sources."""
    defined, used, objects = {}, {}, {}
    for room in ("tensor", "autograd", "nn", "data", "dist"):
        for folder, _, names in os.walk(room):
            for source in (os.path.join(folder, name) for name in sorted(names) if name.endswith(".c")):
                if os.path.exists(os.path.join(build, source[:-2] + ".o")):
                    objects[os.path.join(build, source[:-2] + ".o")] = source
    symbols = subprocess.run(["nm", "-A", *objects], capture_output=True, text=True, check=True).stdout
    for line in symbols.splitlines():
        path, words = line.split(":", 1)[0], line.split(":", 1)[1].split()
        if words[-2] == "U":
            used.setdefault(words[-1], set()).add(objects[path])
        elif len(words) == 3 and words[1].isupper():
            defined[words[2]] = objects[path]
    calls = {}
    for name, sources in used.items():
        for source in sources:
            if name in defined and defined[name] != source:
                calls.setdefault((source, defined[name]), set()).add(name)
    return calls, set(objects.values())


def known_line(call):
    """The line of KNOWN that allows a call, or None."""
    source, target = call
    lines = (f"{source} -> {target}", f"{source} -> {os.path.dirname(target)}/")
    folder = os.path.dirname(target)
    while folder:
        lines += (f"{source} -> {folder}/",)
        folder = os.path.dirname(folder)
    return next((line for line in lines if line in KNOWN), None)


def rooms(calls):
    for source, target in sorted(calls):
        if room_of(target) not in (room_of(source), *BELOW[room_of(source)]):
            yield source, target


def roots(calls):
    for source, target in sorted(calls):
        inside = room_of(source) == room_of(target) and is_root(source) and not is_root(target)
        if inside and not known_line((source, target)):
            yield source, target


def circles(calls):
    """Calls between files of one room that reach each other, in groups of more than two."""
    reaches = {}
    for source, target in calls:
        if room_of(source) == room_of(target) and not known_line((source, target)):
            reaches.setdefault(source, set()).add(target)
    everything = {}
    for start in reaches:
        found, ahead = set(), [start]
        while ahead:
            for target in reaches.get(ahead.pop(), ()):
                if target not in found:
                    found.add(target)
                    ahead.append(target)
        everything[start] = found
    group = {f: {g for g in reached if f in everything.get(g, ())} | {f} for f, reached in everything.items()}
    for source, target in sorted(calls):
        if len(group.get(source, ())) > 2 and target in group[source] and target in reaches.get(source, ()):
            yield source, target


def selftest():
    made = {("nn/a.c", "nn/b.c"): {"f"}, ("nn/b.c", "nn/x/c.c"): {"g"}, ("nn/x/c.c", "nn/a.c"): {"h"},
            ("nn/x/c.c", "nn/x/d.c"): {"i"}, ("nn/x/d.c", "nn/x/c.c"): {"j"}, ("dist/comm/a.c", "dist/ddp/b.c"): {"k"}}
    assert list(rooms(made)) == [("dist/comm/a.c", "dist/ddp/b.c")], list(rooms(made))
    assert list(roots(made)) == [("nn/b.c", "nn/x/c.c")], list(roots(made))
    assert len(list(circles(made))) == 5, list(circles(made))
    del made["nn/b.c", "nn/x/c.c"]
    assert not list(roots(made)) and not list(circles(made))


def main():
    build, what = sys.argv[1:3]
    if what == "selftest":
        return selftest()
    calls, seen = read_calls(build)
    if what == "stale":
        used = {known_line(call) for call in calls}
        for line in KNOWN:
            source, target = line.split(" -> ")
            if line not in used and source in seen and any(s.startswith(target) for s in seen):
                print(f"no such call any more: {line} (tests/project/calls.py)")
        return
    for source, target in {"rooms": rooms, "roots": roots, "circles": circles}[what](calls):
        print(f"{source} calls {target}: {' '.join(sorted(calls[source, target])[:6])}")


main()
