#!/usr/bin/env python3
"""ONNX's own cases of single nodes, computed by tandem.

usage: onnx_cases.py WORKER FOLDER [-v] [NAME...]      WORKER: build/VARIANT/tests/worker_programs
       onnx_cases.py --make FOLDER                     writes the cases of PyPI's onnx

FOLDER has a folder for each case (Debian's libonnx-testdata: /usr/share/libonnx-testdata/data/node). A case is
expressible if tandem has its operations and dtypes; then each output must have the dtype and shape that ONNX says, and
its values to a relative 1e-3 (ONNX's own bound), on each instruction set of the machine. bool is u8. NODES
(onnx_nodes.py, onnx_layers.py) has a line for each operator. -v names what is missing.
"""
import collections
import os
import subprocess
import sys

import onnx_layers  # its operators are in NODES
from onnx_nodes import BF16, NODES, Inexpressible, Model, Node, Worker, tensor

def compute(w, model, inputs):
    """The outputs of a model."""
    known = {name: t for (name, _), t in zip(model.inputs, inputs)}
    for data in model.nodes:
        node = Node(data)
        if node.op not in NODES or node.domain not in ("", "ai.onnx"):
            raise Inexpressible(node.op)
        results = NODES[node.op](w, node, *[known[name] if name else None for name in node.inputs])
        results = results if isinstance(results, (list, tuple)) else [results]
        of_sizes = all(known[name].of_sizes for name in node.inputs if name)
        for name, t in zip(node.outputs, results):
            known[name] = t
            t.of_sizes = t.of_sizes or of_sizes
        if any(name and name not in known for name in node.outputs):
            raise Inexpressible(f"{node.op}'s further results")
    return [known[name] for name, _ in model.outputs]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def difference(got, want):
    """What is wrong, or None."""
    if (got.dtype, list(got.shape)) != (want.dtype, list(want.shape)):
        return f"dtype {got.dtype}, shape {list(got.shape)} for {want.dtype}, {want.shape}"
    rounding, least = 1e-3, 1e-6
    if want.dtype == BF16:  # each of several operations rounds to 8 bits
        largest = max([abs(v) for v in want.values if abs(v) < float("inf")], default=0)
        rounding, least = 1e-2, 2 ** -8 * largest
    for i, (a, b) in enumerate(zip(got.values, want.values)):
        if not (a == b or a != a and b != b or abs(a - b) <= least + rounding * abs(b)):
            return f"element {i} is {a}, not {b}"
    return None


def run_case(w, folder):
    """What is wrong, or None."""
    model = Model(read(os.path.join(folder, "model.onnx")))
    for data_set in sorted(name for name in os.listdir(folder) if name.startswith("test_data_set")):
        at = os.path.join(folder, data_set)
        load = lambda kind, n: [tensor(read(os.path.join(at, f"{kind}_{i}.pb"))) for i in range(n)]
        wanted = load("output", len(model.outputs))
        w.begin()
        for i, got in enumerate(compute(w, model, load("input", len(model.inputs)))):
            if (wrong := difference(got, wanted[i])) is not None:
                return f"output {i}: {wrong}"
    return None


def run_all(w, folder, names, missing):
    """The names of cases that pass, and (name, what is wrong) of those that fail."""
    passed, failed = [], []
    for name in names:
        try:
            wrong = run_case(w, os.path.join(folder, name))
        except Inexpressible as what:
            missing[str(what)].append(name)
            continue
        except RuntimeError as what:
            wrong = str(what)
        if wrong is None:
            passed.append(name)
        else:
            failed.append((name, wrong))
    return passed, failed


def make(folder):
    """PyPI's onnx has the cases as a program."""
    from onnx import TensorProto, numpy_helper
    from onnx.backend.test.case.node import collect_testcases
    for case in collect_testcases(None):
        at = os.path.join(folder, case.name)
        for i, pair in enumerate(case.data_sets):
            os.makedirs(f"{at}/test_data_set_{i}", exist_ok=True)
            with open(f"{at}/model.onnx", "wb") as f:
                f.write(case.model.SerializeToString())
            for kind, values in zip(("input", "output"), pair):
                for j, value in enumerate(values):
                    if hasattr(value, "dtype"):
                        value = numpy_helper.from_array(value)
                    if isinstance(value, TensorProto):
                        with open(f"{at}/test_data_set_{i}/{kind}_{j}.pb", "wb") as f:
                            f.write(value.SerializeToString())


def main():
    if sys.argv[1] == "--make":
        make(sys.argv[2])
        return
    program, folder = sys.argv[1:3]
    verbose, names = "-v" in sys.argv[3:], [a for a in sys.argv[3:] if a != "-v"] or sorted(os.listdir(folder))
    levels = subprocess.run([program, "levels"], capture_output=True, text=True, check=True).stdout.split()
    bad = False
    for level in levels:
        missing = collections.defaultdict(list)
        passed, failed = run_all(Worker(program, level), folder, names, missing)
        for name, wrong in failed:
            print(f"FAIL  {name}: {wrong}")
        if verbose and level == levels[-1]:
            for what, cases in sorted(missing.items(), key=lambda item: -len(item[1])):
                print(f"{len(cases):5} miss {what}")
        print(f"onnx_cases: {level}: {len(names)} cases, {len(passed) + len(failed)} expressible, {len(passed)} pass")
        bad = bad or failed != []
    sys.exit(bad)


main()
