"""For onnx_cases.py: ONNX's messages, the worker, and how tandem computes each operator. tests/autograd/onnx_layers.py has more
operators."""
import math
import struct
import subprocess


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
    """A value: in a register of the worker, or known here, or both. of_sizes: it depends on shapes and constants
    alone, so that its integers may be computed here, as a program's own are."""

    def __init__(self, dtype, shape, values, register=None, of_sizes=False):
        self.dtype, self.shape, self.values, self.register = dtype, shape, values, register
        self.of_sizes = of_sizes


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


    def cast(self, t, dtype):
        """The same elements in another dtype."""
        return t if t.dtype == dtype else self.op("cast", t, dtype)


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
        if op == "Neg" and inputs[0].of_sizes and inputs[0].dtype not in FLOATS:
            return Tensor(inputs[0].dtype, inputs[0].shape, [-v for v in inputs[0].values])
        floating(*inputs)
        if len(inputs) != count:
            raise Inexpressible(f"{node.op} of {len(inputs)}")
        return w.op(name, *inputs)
    NODES[op] = run


for op_, name_ in {"Neg": "neg", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Relu": "relu", "Sigmoid": "sigmoid",
                   "Tanh": "tanh", "GlobalAveragePool": "global_avg_pool2d", "Abs": "abs", "Sign": "sign",
                   "Floor": "floor", "Ceil": "ceil", "Round": "round", "Reciprocal": "reciprocal", "Sin": "sin",
                   "Cos": "cos", "Erf": "erf", "Softplus": "softplus", "Softsign": "softsign",
                   "HardSwish": "hardswish", "Mish": "mish"}.items():
    simple(op_, name_)
# Of two tensors: of floats, and of integers where there is one.
WHOLE = {"Add": "add", "Sub": "sub", "Mul": "mul"}
COMPARE = {"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge"}


@operator(*WHOLE, *COMPARE)
def of_two(w, node, a, b):
    return w.op({**WHOLE, **COMPARE}[node.op], a, b)


@operator("Div", "Mod")
def div(w, node, a, b):
    if a.of_sizes and b.of_sizes and a.dtype not in FLOATS and len(b.values) == 1:
        divisor = int(b.values[0])
        return Tensor(a.dtype, a.shape if len(a.shape) >= len(b.shape) else b.shape,
                      [divmod(int(v), divisor)[node.op == "Mod"] for v in a.values])
    floating(a, b)
    if node.op == "Mod":
        raise Inexpressible("Mod")
    return w.op("div", a, b)


@operator("Max", "Min", "Sum", "Mean")
def of_many(w, node, first, *others):
    name = {"Max": "maximum", "Min": "minimum"}.get(node.op, "add")
    y = w.op("contiguous", first)
    for x in others:
        y = w.op(name, y, x)
    return y if node.op != "Mean" else w.op("mul_scalar", y, 1 / (1 + len(others)))


@operator("And", "Or", "Xor")
def logical(w, node, a, b):
    return w.op({"And": "mul", "Or": "maximum", "Xor": "ne"}[node.op], a, b)


@operator("Not")
def logical_not(w, node, x):
    return w.op("eq", x, Tensor(U8, [], [0]))


@operator("Where")
def where(w, node, condition, a, b):
    return w.op("where", condition, a, b)


@operator("Pow")
def power(w, node, a, b):
    floating(a)
    return w.op("pow_tensor", a, w.cast(b, a.dtype))


@operator("PRelu")
def prelu(w, node, x, slope):
    floating(x)
    shape = [1] * (len(x.shape) - len(slope.shape)) + list(slope.shape)
    return w.op("prelu", x, w.op("reshape", slope, *shape))


@operator("Clip")
def clip(w, node, x, low=None, high=None):
    low = node.get("min", -math.inf) if low is None else low.values[0]
    high = node.get("max", math.inf) if high is None else high.values[0]
    if x.dtype in FLOATS:
        return w.op("clamp", x, low, high)
    for name, bound in (("maximum", low), ("minimum", high)):
        x = w.op(name, x, Tensor(x.dtype, [], [bound])) if math.isfinite(bound) else x
    return x


@operator("LeakyRelu", "Elu", "ThresholdedRelu", "Celu", "Shrink")
def with_number(w, node, x):
    floating(x)
    if node.op == "LeakyRelu":
        return w.op("leaky_relu", x, node.get("alpha", 0.01))
    alpha = node.get("alpha", 1.0)
    if node.op == "Elu":
        return w.op("elu", x, alpha)
    if node.op == "Celu":
        return w.op("mul_scalar", w.op("elu", w.op("mul_scalar", x, 1 / alpha), 1.0), alpha)
    if node.op == "ThresholdedRelu":
        zero = Tensor(x.dtype, [], [0.0])
        return w.op("where", w.op("gt", x, Tensor(x.dtype, [], [alpha])), x, zero)
    bias, edge = node.get("bias", 0.0), node.get("lambd", 0.5)
    y = w.op("where", w.op("lt", x, Tensor(x.dtype, [], [-edge])), w.op("add_scalar", x, bias),
             Tensor(x.dtype, [], [0.0]))
    return w.op("where", w.op("gt", x, Tensor(x.dtype, [], [edge])), w.op("add_scalar", x, -bias), y)


@operator("Selu")
def selu(w, node, x):
    floating(x)
    alpha, gamma = node.get("alpha"), node.get("gamma")
    if alpha is None:
        return w.op("selu", x)
    return w.op("mul_scalar", w.op("elu", x, alpha), gamma)


@operator("HardSigmoid")
def hard_sigmoid(w, node, x):
    floating(x)
    y = w.op("add_scalar", w.op("mul_scalar", x, node.get("alpha", 0.2)), node.get("beta", 0.5))
    return w.op("clamp", y, 0.0, 1.0)


@operator("Gelu")
def gelu(w, node, x):
    floating(x)
    return w.op("gelu_tanh" if node.get("approximate") == "tanh" else "gelu", x)


@operator("Swish")
def swish(w, node, x):
    floating(x)
    return w.op("mul", x, w.op("sigmoid", w.op("mul_scalar", x, node.get("alpha", 1.0))))


@operator("IsNaN")
def is_nan(w, node, x):
    return w.op("ne", x, x)


@operator("IsInf")
def is_inf(w, node, x):
    floating(x)
    y = Tensor(U8, [], [0])
    for bound, wanted in ((math.inf, node.get("detect_positive", 1)), (-math.inf, node.get("detect_negative", 1))):
        if wanted:
            y = w.op("maximum", y, w.op("eq", x, Tensor(x.dtype, [], [bound])))
    return y


@operator("MatMul")
def matmul(w, node, a, b):
    floating(a, b)
    return w.op("matmul", a, b)


@operator("Gemm")
def gemm(w, node, a, b, c=None):
    floating(a, b, c)
    a = w.op("transpose", a, 0, 1) if node.get("transA", 0) else a
    b = w.op("transpose", b, 0, 1) if node.get("transB", 0) else b
    y = w.op("mul_scalar", w.op("matmul", a, b), node.get("alpha", 1.0))
    return y if c is None else w.op("add", y, w.op("mul_scalar", c, node.get("beta", 1.0)))


@operator("Identity")
def identity(w, node, x):
    return w.op("contiguous", x)


@operator("Cast", "CastLike")
def cast(w, node, x, like=None):
    to = like.dtype if like is not None else dtype_of(node.get("to"))
    if U8 in (x.dtype, to) and x.dtype != to:
        raise Inexpressible("casts of bool and u8, which are one dtype here")
    return w.cast(x, to)


# ---- shapes; what is computed of sizes is known here ----

@operator("Shape")
def shape_of(w, node, x):
    sizes = list(x.shape)[slice(node.get("start", 0), node.get("end"))]
    return Tensor(I64, [len(sizes)], sizes, of_sizes=True)


@operator("Size")
def size_of(w, node, x):
    return Tensor(I64, [], [math.prod(x.shape)], of_sizes=True)


@operator("Constant")
def constant(w, node):
    for name, value in node.attributes.items():
        if name == "value":
            return value
        if name == "value_float":
            return Tensor(F32, [], [value])
        if name == "value_int":
            return Tensor(I64, [], [value])
        if name == "value_floats":
            return Tensor(F32, [len(value)], value)
        if name == "value_ints":
            return Tensor(I64, [len(value)], value)
    raise Inexpressible("Constant's kind")


@operator("ConstantOfShape")
def constant_of_shape(w, node, shape):
    value, sizes = node.get("value", Tensor(F32, [1], [0.0])), whole(shape)
    return Tensor(value.dtype, sizes, list(value.values) * math.prod(sizes))


@operator("Range")
def numbers(w, node, start, limit, delta):
    first, step = start.values[0], delta.values[0]
    count = max(0, math.ceil((limit.values[0] - first) / step))
    return Tensor(start.dtype, [count], [first + i * step for i in range(count)])


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


def axes_of(node, x, axes, dims=None):
    """The dimensions that an attribute or an input names, from the front; None: not given."""
    values = whole(axes) if axes is not None else node.get("axes")
    dims = len(x.shape) if dims is None else dims
    return None if values is None else sorted(d + dims if d < 0 else d for d in values)


@operator("Squeeze")
def squeeze(w, node, x, axes=None):
    gone = axes_of(node, x, axes)
    gone = [d for d, size in enumerate(x.shape) if size == 1] if gone is None else gone
    y = w.op("contiguous", x)
    for d in reversed(gone):
        y = w.op("squeeze", y, d)
    return y


@operator("Unsqueeze")
def unsqueeze(w, node, x, axes=None):
    given = whole(axes) if axes is not None else node.get("axes")
    y = w.op("contiguous", x)
    for d in axes_of(node, x, axes, len(x.shape) + len(given)):
        y = w.op("unsqueeze", y, d)
    return y


@operator("Expand")
def expand(w, node, x, shape):
    sizes = whole(shape)
    sizes = [1] * (len(x.shape) - len(sizes)) + sizes
    own = [1] * (len(sizes) - len(x.shape)) + list(x.shape)
    return w.op("expand", x, *[max(a, b) if 0 not in (a, b) else 0 for a, b in zip(own, sizes)])


@operator("Concat")
def concat(w, node, *parts):
    return w.op("cat", node.get("axis"), *parts)


@operator("Split")
def split(w, node, x, sizes=None):
    axis = node.get("axis", 0)
    size = x.shape[axis]
    given = whole(sizes) if sizes is not None else node.get("split")
    count = len(node.outputs)
    each = (size + count - 1) // count
    given = given or [min(each, size - i * each) for i in range(count)]
    return [w.op("split", x, axis, i, *given) for i in range(count)]


@operator("Slice")
def slices(w, node, x, starts=None, ends=None, axes=None, steps=None):
    starts = whole(starts) if starts is not None else node.get("starts")
    ends = whole(ends) if ends is not None else node.get("ends")
    axes = whole(axes) if axes is not None else node.get("axes", list(range(len(starts))))
    steps = whole(steps) if steps is not None else [1] * len(starts)
    y = w.op("contiguous", x)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        first, last, step = slice(start, end, step).indices(y.shape[axis])
        y = w.op("slice", y, axis, first, last if last >= 0 else -2 ** 40, step)
    return y


@operator("Tile")
def tile(w, node, x, repeats):
    return w.op("tile", x, *whole(repeats))


@operator("Pad")
def pad(w, node, x, pads=None, value=None, axes=None):
    mode = {"constant": 0, "reflect": 1, "edge": 2}.get(node.get("mode", "constant"))
    if mode is None:
        raise Inexpressible("Pad's " + node.get("mode"))
    given = whole(pads) if pads is not None else node.get("pads")
    dims = len(x.shape)
    axes = [d + dims if d < 0 else d for d in whole(axes)] if axes is not None else list(range(dims))
    before, after = [0] * dims, [0] * dims
    for i, d in enumerate(axes):
        before[d], after[d] = given[i], given[len(axes) + i]
    if min(before + after) < 0:
        raise Inexpressible("Pad of less than nothing")
    return w.op("pad", x, mode, value.values[0] if value is not None else node.get("value", 0.0), *before, *after)


@operator("Gather")
def gather(w, node, x, index):
    axis = node.get("axis", 0)
    axis += len(x.shape) if axis < 0 else 0
    places = Tensor(I64, [len(index.values)], [v + x.shape[axis] if v < 0 else v for v in index.values])
    y = w.op("index_select", x, axis, places)
    return w.op("reshape", y, *x.shape[:axis], *index.shape, *x.shape[axis + 1:])


@operator("GatherElements")
def gather_elements(w, node, x, index):
    axis = node.get("axis", 0)
    return w.op("gather", x, axis, positive_index(index, x.shape[axis]))


def positive_index(index, size):
    return Tensor(I64, index.shape, [v + size if v < 0 else v for v in index.values])


@operator("ScatterElements", "Scatter")
def scatter_elements(w, node, x, index, updates):
    floating(x)
    axis, how = node.get("axis", 0), node.get("reduction", "none")
    if how not in ("none", "add"):
        raise Inexpressible("ScatterElements' " + how)
    index = positive_index(index, x.shape[axis])
    if how == "none":  # what is there is taken away first; each place comes once
        updates = w.op("sub", updates, w.op("gather", x, axis, index))
    return w.op("scatter_add", x, axis, index, updates)


@operator("OneHot")
def one_hot(w, node, index, depth, values):
    classes, axis = int(depth.values[0]), node.get("axis", -1)
    axis += len(index.shape) + 1 if axis < 0 else 0
    if any(not -classes <= v < classes for v in whole(index)):
        raise Inexpressible("OneHot of indices out of range")
    places = Tensor(I64, index.shape, [v % classes for v in whole(index)])
    y = w.op("ne", w.op("one_hot", places, classes), Tensor(I64, [], [0]))
    order = list(range(len(index.shape)))
    y = w.op("permute", y, *order[:axis], len(order), *order[axis:])
    off, on = (Tensor(values.dtype, [], [v]) for v in values.values)
    return w.op("where", y, on, off)


@operator("Trilu")
def trilu(w, node, x, k=None):
    return w.op("triu" if node.get("upper", 1) else "tril", x, whole(k)[0] if k is not None else 0)


@operator("TopK")
def topk(w, node, x, k):
    axis, largest = node.get("axis", -1), node.get("largest", 1)
    count = whole(k)[0]
    if largest:
        return [w.op("topk", x, axis, count, part) for part in (0, 1)]
    both = [w.op("sort", x, axis, 0, part) for part in (0, 1)]
    return [w.op("slice", t, axis, 0, count, 1) for t in both]


@operator("ArgMax", "ArgMin")
def arg_max(w, node, x):
    floating(x)
    x = x if node.op == "ArgMax" else w.op("neg", x)
    name = "argmax_last" if node.get("select_last_index", 0) else "argmax"
    return w.op(name, x, node.get("axis", 0), node.get("keepdims", 1))


@operator("Hardmax")
def hardmax(w, node, x):
    floating(x)
    axis = node.get("axis", -1)
    axis += len(x.shape) if axis < 0 else 0
    hot = w.op("one_hot", w.op("argmax", x, axis, 0), x.shape[axis])
    order = list(range(len(x.shape) - 1))
    return w.cast(w.op("permute", hot, *order[:axis], len(order), *order[axis:]), x.dtype)


@operator("CumSum")
def cumsum(w, node, x, axis):
    d = whole(axis)[0]
    y = w.op("flip", x, d) if node.get("reverse", 0) else x
    if node.get("exclusive", 0):
        z = w.op("sub", w.op("cumsum", y, d), y)
    else:
        z = w.op("cumsum", y, d)
    return w.op("flip", z, d) if node.get("reverse", 0) else z


@operator("SpaceToDepth", "DepthToSpace")
def blocks(w, node, x):
    n, c, height, width = x.shape
    b = node.get("blocksize")
    if node.op == "SpaceToDepth":
        y = w.op("reshape", x, n, c, height // b, b, width // b, b)
        order = (0, 1, 3, 5, 2, 4) if node.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
        return w.op("reshape", w.op("permute", y, *order), n, c * b * b, height // b, width // b)
    if node.get("mode", "DCR") == "DCR":
        y = w.op("permute", w.op("reshape", x, n, b, b, c // b // b, height, width), 0, 3, 4, 1, 5, 2)
    else:
        y = w.op("permute", w.op("reshape", x, n, c // b // b, b, b, height, width), 0, 1, 4, 2, 5, 3)
    return w.op("reshape", y, n, c // b // b, height * b, width * b)


# ---- reductions ----

@operator("Softmax", "LogSoftmax")
def softmax(w, node, x):
    floating(x)
    return w.op("softmax" if node.op == "Softmax" else "log_softmax", x, node.get("axis", -1))


@operator("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
          "ReduceProd", "ReduceMax", "ReduceMin")
def reduce(w, node, x, axes=None):
    floating(x)
    keep, dims, name = node.get("keepdims", 1), axes_of(node, x, axes), node.op[6:]
    if not dims:
        if node.get("noop_with_empty_axes", 0) and (axes is not None or "axes" not in node.attributes):
            return {"L1": lambda: w.op("abs", x), "L2": lambda: w.op("abs", x), "LogSum": lambda: w.op("log", x),
                    "SumSquare": lambda: w.op("mul", x, x)}.get(name, lambda: w.op("contiguous", x))()
        dims = list(range(len(x.shape)))
    if name in ("Prod", "Max", "Min"):
        y = w.op("neg", x) if name == "Min" else x
        for d in reversed(dims):
            if name != "Prod" and y.shape[d] == 0:
                raise Inexpressible("the largest of nothing")
            y = w.op("prod_dim" if name == "Prod" else "max_dim", y, d, keep)
        return w.op("neg", y) if name == "Min" else y
    along = lambda op, y: w.op(op, y, keep, *dims) if dims else w.op("contiguous", y)
    if name == "LogSumExp":
        top = x
        for d in dims:
            top = w.op("max_dim", top, d, 1) if top.shape[d] > 0 else top
        if 0 in x.shape:
            return w.op("log", along("sum_dims", w.op("exp", x)))
        y = w.op("log", along("sum_dims", w.op("exp", w.op("sub", x, top))))
        return w.op("add", y, w.op("reshape", top, *y.shape))
    return {"Sum": lambda: along("sum_dims", x), "Mean": lambda: along("mean_dims", x),
            "L1": lambda: along("sum_dims", w.op("abs", x)), "L2": lambda: along("norm", x),
            "SumSquare": lambda: along("sum_dims", w.op("mul", x, x)),
            "LogSum": lambda: w.op("log", along("sum_dims", x))}[name]()


@operator("MeanVarianceNormalization")
def mean_variance(w, node, x):
    dims = node.get("axes", [0, 2, 3])
    from_mean = w.op("sub", x, w.op("mean_dims", x, 1, *dims))
    return w.op("div", from_mean, w.op("add_scalar", w.op("std", x, 0.0, 1, *dims), 1e-9))
