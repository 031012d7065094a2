#!/usr/bin/env python3
"""ONNX's own cases of single nodes, computed by tandem.

usage: onnx_cases.py WORKER FOLDER [-v] [NAME...]      WORKER: build/VARIANT/tests/worker_programs
       onnx_cases.py --make FOLDER                     writes the cases of PyPI's onnx

FOLDER has a folder for each case (Debian's libonnx-testdata: /usr/share/libonnx-testdata/data/node). A case is
expressible if tandem has its operations and dtypes; then each output must have the dtype and shape that ONNX says, and
its values to a relative 1e-3 (ONNX's own bound), on each instruction set of the machine. bool is u8. NODES has a line
for each operator. -v names what is missing.
"""
import collections
import math
import os
import struct
import subprocess
import sys


class Inexpressible(Exception):
    """What tandem does not have."""


# ---- protobuf: what a model and a tensor need of it ----

def fields(data):
    """(number, value) of a message: integers, bytes, or the raw 4 or 8 bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
            continue
        size = varint() if wire == 2 else 8 if wire == 1 else 4
        yield key >> 3, bytes(data[at:at + size])
        at += size


def signed(value):
    return value - 2 ** 64 if value >= 2 ** 63 else value


def integers(value):
    """A repeated integer: one, or several packed."""
    if isinstance(value, int):
        return [signed(value)]
    return [signed(v) for _, v in fields(b"".join(b"\x08" + part for part in split_varints(value)))]


def split_varints(data):
    begin = 0
    for at, byte in enumerate(data):
        if byte < 128:
            yield data[begin:at + 1]
            begin = at + 1


# ONNX's dtype: tandem's dtype (its number), and the letter of struct.
F32, F64, BF16, I64, I32, U8 = 0, 1, 2, 4, 5, 6
FLOATS = (F32, F64, BF16)
DTYPES = {1: (F32, "f"), 2: (U8, "B"), 6: (I32, "i"), 7: (I64, "q"), 9: (U8, "B"), 11: (F64, "d"), 16: (BF16, "H")}
NAMES = {0: "undefined", 3: "int8", 4: "uint16", 5: "int16", 8: "string", 10: "float16", 12: "uint32", 13: "uint64"}


def dtype_of(onnx):
    if onnx not in DTYPES:
        raise Inexpressible("dtype " + NAMES.get(onnx, f"number {onnx}"))
    return DTYPES[onnx][0]


class Tensor:
    """A value: in a register of the worker, or known here, or both."""

    def __init__(self, dtype, shape, values, register=None):
        self.dtype, self.shape, self.values, self.register = dtype, shape, values, register


def tensor(data):
    shape, kind, values, raw = [], 0, [], None
    for number, value in fields(data):
        if number == 1:
            shape += integers(value)
        elif number == 2:
            kind = value
        elif number in (4, 10):
            letter = "f" if number == 4 else "d"
            values += struct.unpack(f"<{len(value) // struct.calcsize(letter)}{letter}", value)
        elif number in (5, 7):
            values += integers(value)
        elif number == 9:
            raw = value
    dtype = dtype_of(kind)
    letter = DTYPES[kind][1]
    if raw is not None:
        values = list(struct.unpack(f"<{len(raw) // struct.calcsize(letter)}{letter}", raw))
    if dtype == BF16:
        values = [struct.unpack("<f", struct.pack("<I", v << 16))[0] for v in values]
    return Tensor(dtype, shape, values)


def attribute(data):
    name, result, kind = "", None, 0
    floats, ints, strings = [], [], []
    for number, value in fields(data):
        if number == 1:
            name = value.decode()
        elif number == 2:
            result = struct.unpack("<f", value)[0]
        elif number == 3:
            result = signed(value)
        elif number == 4:
            result = value.decode(errors="replace")
        elif number == 5:
            result = value
        elif number == 6:
            result = Inexpressible
        elif number == 7:
            floats += struct.unpack(f"<{len(value) // 4}f", value)
        elif number == 8:
            ints += integers(value)
        elif number == 9:
            strings.append(value.decode(errors="replace"))
        elif number == 20:
            kind = value
    result = {6: floats, 7: ints, 8: strings}.get(kind, result)
    return name, tensor(result) if kind == 4 else result


class Node:
    def __init__(self, data):
        self.inputs, self.outputs, self.op, self.attributes, self.domain = [], [], "", {}, ""
        for number, value in fields(data):
            if number == 1:
                self.inputs.append(value.decode())
            elif number == 2:
                self.outputs.append(value.decode())
            elif number == 4:
                self.op = value.decode()
            elif number == 5:
                name, result = attribute(value)
                self.attributes[name] = result
            elif number == 7:
                self.domain = value.decode()

    def get(self, name, usual=None):
        return self.attributes.get(name, usual)


class Model:
    def __init__(self, data):
        graph = next(value for number, value in fields(data) if number == 7)
        opsets = [list(fields(value)) for number, value in fields(data) if number == 8]
        self.opset = max([v for opset in opsets for number, v in opset if number == 2], default=1)
        parts = list(fields(graph))
        self.nodes = [value for number, value in parts if number == 1]
        self.inputs, self.outputs = ([self.info(v) for number, v in parts if number == n] for n in (11, 12))

    @staticmethod
    def info(data):
        parts = dict(fields(data))
        kinds = dict(fields(parts.get(2, b"")))
        if 1 not in kinds:
            raise Inexpressible("sequences and optionals")
        return parts[1].decode(), dtype_of(dict(fields(kinds[1])).get(1, 0))


# ---- the worker ----

class Worker:
    """Keeps registers and runs operations on them."""

    def __init__(self, program, level):
        self.command = [program, level, "2"]
        self.process = None

    def begin(self):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE)
        self.count = 0
        self.send("program 0 0\n")

    def send(self, line, values=None):
        try:
            self.process.stdin.write(line.encode())
            if values is not None:
                self.process.stdin.write(struct.pack(f"<{len(values)}d", *values))
            self.process.stdin.flush()
        except BrokenPipeError:
            self.fail()

    def fail(self):
        raise RuntimeError("the worker ended: " + self.process.communicate()[1].decode()[-300:].strip())

    def next(self):
        self.count += 1
        return self.count - 1

    def register(self, t):
        """The register of a tensor."""
        if t is None:
            return -1
        if t.register is None:
            self.send(" ".join(map(str, ["input", t.dtype, 0, 0, *t.shape])) + "\n", t.values)
            t.register = self.next()
        return t.register

    def op(self, name, *numbers):
        numbers = [self.register(n) if n is None or isinstance(n, Tensor) else n for n in numbers]
        self.send(" ".join([name, *map(repr, map(float, numbers))]) + "\n")
        register = self.next()
        self.send(f"show {register}\n")
        header = self.process.stdout.readline().split()
        if not header:
            self.fail()
        dtype, *shape = map(int, header)
        n = math.prod(shape)
        return Tensor(dtype, shape, struct.unpack(f"<{n}d", self.process.stdout.read(8 * n)), register)


# ---- operators ----

def floating(*tensors):
    for t in tensors:
        if t is not None and t.dtype not in FLOATS:
            raise Inexpressible("not of integers")


def whole(t):
    """Integers that are known."""
    return [int(v) for v in t.values]


def optional(inputs, i):
    return inputs[i] if i < len(inputs) else None


def only(node, **allowed):
    """Attributes that must have these values, if they are there."""
    for name, value in allowed.items():
        if node.get(name, value) != value:
            raise Inexpressible(f"{node.op}'s {name}")


NODES = {}


def operator(*names):
    def note(f):
        for name in names:
            NODES[name] = f
        return f
    return note


def simple(op, name, count=1):
    """An operator that is an operation, without attributes, of floats."""
    def run(w, node, *inputs):
        floating(*inputs)
        if len(inputs) != count:
            raise Inexpressible(f"{node.op} of {len(inputs)}")
        return w.op(name, *inputs)
    NODES[op] = run


for op_, name_ in {"Neg": "neg", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Relu": "relu", "Sigmoid": "sigmoid",
                   "Tanh": "tanh", "GlobalAveragePool": "global_avg_pool2d"}.items():
    simple(op_, name_)
for op_, name_ in {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}.items():
    simple(op_, name_, 2)


@operator("MatMul")
def matmul(w, node, a, b):
    floating(a, b)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise Inexpressible("products of vectors")
    return w.op("matmul", a, b)


@operator("Identity")
def identity(w, node, x):
    return w.op("contiguous", x)


@operator("Transpose")
def transpose(w, node, x):
    return w.op("permute", x, *node.get("perm", list(range(len(x.shape)))[::-1]))


@operator("Reshape")
def reshape(w, node, x, shape):
    sizes = whole(shape)
    if not node.get("allowzero", 0):
        sizes = [x.shape[d] if size == 0 else size for d, size in enumerate(sizes)]
    return w.op("reshape", x, *sizes)


@operator("Flatten")
def flatten(w, node, x):
    axis = node.get("axis", 1)
    axis += len(x.shape) if axis < 0 else 0
    return w.op("reshape", x, math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Concat")
def concat(w, node, *parts):
    return w.op("cat", node.get("axis"), *parts)


@operator("Softmax", "LogSoftmax")
def softmax(w, node, x):
    floating(x)
    return w.op("softmax" if node.op == "Softmax" else "log_softmax", x, node.get("axis", -1))


# ---- cases ----

def compute(w, model, inputs):
    """The outputs of a model."""
    known = {name: t for (name, _), t in zip(model.inputs, inputs)}
    for data in model.nodes:
        node = Node(data)
        if node.op not in NODES or node.domain not in ("", "ai.onnx"):
            raise Inexpressible(node.op)
        results = NODES[node.op](w, node, *[known[name] if name else None for name in node.inputs])
        results = results if isinstance(results, (list, tuple)) else [results]
        for name, t in zip(node.outputs, results):
            known[name] = t
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
    rounding = 1e-2 if want.dtype == BF16 else 1e-3
    for i, (a, b) in enumerate(zip(got.values, want.values)):
        if not (a == b or a != a and b != b or abs(a - b) <= 1e-6 + rounding * abs(b)):
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
