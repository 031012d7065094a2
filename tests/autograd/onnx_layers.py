"""For onnx_cases.py: losses, convolutions, pooling, normalisations, recurrent layers and attention."""
import math

from onnx_nodes import F32, F64, I64, U8, Inexpressible, Tensor, floating, operator, whole


def filled(t, shape, value):
    return Tensor(t.dtype, list(shape), [value] * math.prod(shape))


# ---- losses ----

@operator("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(w, node, x, labels, weight=None):
    floating(x)
    ignored = node.get("ignore_index")
    ignored = 0 if ignored is None else math.inf if ignored == 0 else ignored
    how = {"mean": 0, "sum": 1, "none": 2}[node.get("reduction", "mean")]
    labels = w.cast(labels, I64)
    if node.op == "NegativeLogLikelihoodLoss":
        return w.op("nll_loss", x, labels, weight, 0, ignored, how)
    y = [w.op("cross_entropy", x, labels, weight, 0, ignored, how)]
    return y + [w.op("log_softmax", x, 1)] if len(node.outputs) > 1 else y


# ---- windows ----

class Windows:
    """The windows of a node over the sides of x: sizes, and padding before and behind."""

    def __init__(self, node, x, kernel):
        self.kernel, n = kernel, len(kernel)
        self.strides = node.get("strides", [1] * n)
        self.dilations = node.get("dilations", [1] * n)
        self.ceil = node.get("ceil_mode", 0)
        pads, auto = node.get("pads", [0] * 2 * n), node.get("auto_pad", "NOTSET")
        self.before, self.after = pads[:n], pads[n:]
        self.reach = [d * (k - 1) + 1 for d, k in zip(self.dilations, kernel)]
        if auto.startswith("SAME"):
            for d, size in enumerate(x.shape[2:]):
                self.set_side(d, (-(-size // self.strides[d]) - 1) * self.strides[d] + self.reach[d] - size, auto)

    def set_side(self, d, total, auto):
        total = max(total, 0)
        less, more = total // 2, total - total // 2
        self.before[d], self.after[d] = (less, more) if auto == "SAME_UPPER" else (more, less)

    def even(self):
        return self.before == self.after


def padded(w, x, windows, value):
    """x with the windows' padding around it."""
    return w.op("pad", x, 0, value, 0, 0, *windows.before, 0, 0, *windows.after)


def two_sides(w, x):
    """[N,C,L] as [N,C,1,L]."""
    return w.op("reshape", x, *x.shape[:2], 1, x.shape[2])


@operator("Conv")
def conv(w, node, x, weight, bias=None):
    floating(x)
    sides = len(x.shape) - 2
    p = Windows(node, x, node.get("kernel_shape", list(weight.shape[2:])))
    groups = node.get("group", 1)
    if sides == 1:
        y = w.op("conv2d_pads", two_sides(w, x), two_sides(w, weight), bias, 1, *p.strides, 1, *p.dilations, groups,
                 0, *p.before, 0, *p.after)
        return w.op("reshape", y, *y.shape[:2], y.shape[3])
    if sides == 2:
        return w.op("conv2d_pads", x, weight, bias, *p.strides, *p.dilations, groups, *p.before, *p.after)
    if sides > 3:
        raise Inexpressible("Conv of more than three dimensions")
    pads = p.before
    if not p.even():
        x, pads = padded(w, x, p, 0.0), [0, 0, 0]
    return w.op("conv3d", x, weight, bias, *p.strides, *pads, *p.dilations, groups)


@operator("ConvTranspose")
def conv_transpose(w, node, x, weight, bias=None):
    floating(x)
    sides = len(x.shape) - 2
    if sides > 2:
        raise Inexpressible("ConvTranspose of three dimensions")
    p = Windows(node, x, node.get("kernel_shape", list(weight.shape[2:])))
    more = list(node.get("output_padding", [0] * sides))
    auto, wanted = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    if auto.startswith("SAME") and wanted is None:
        wanted = [size * s for size, s in zip(x.shape[2:], p.strides)]
    for d in range(sides if wanted else 0):
        whole_size = (x.shape[2 + d] - 1) * p.strides[d] + p.reach[d] + more[d]
        if whole_size < wanted[d]:  # what is missing at the end
            more[d] += wanted[d] - whole_size
            whole_size = wanted[d]
        p.set_side(d, whole_size - wanted[d], auto)
    if any(m >= s for m, s in zip(more, p.strides)):
        raise Inexpressible("ConvTranspose's output_padding from the stride on")
    if sides == 1:
        x, weight = two_sides(w, x), two_sides(w, weight)
    one, none = [1] * (2 - sides), [0] * (2 - sides)
    y = w.op("conv_transpose2d", x, weight, bias, *one, *p.strides, *none, *(p.before if p.even() else [0] * sides),
             *one, *p.dilations, *none, *more, node.get("group", 1))
    y = w.op("reshape", y, *y.shape[:2], y.shape[3]) if sides == 1 else y
    for d in range(sides if not p.even() else 0):
        y = w.op("slice", y, 2 + d, p.before[d], y.shape[2 + d] - p.after[d], 1)
    return y


def pool_sides(w, name, x, p, sides, exclude):
    """Windows over one or two sides of x, which are the last; others are batches."""
    fold = [math.prod(x.shape[:-len(sides)]), 1] + [1] * (2 - len(sides)) + list(x.shape[-len(sides):])
    pick = lambda values, usual: [usual] * (2 - len(sides)) + [values[d] for d in sides]
    y = w.op(name, w.op("reshape", x, *fold), *pick(p.kernel, 1), *pick(p.strides, 1), *pick(p.before, 0), exclude,
             p.ceil, *pick(p.dilations, 1))
    return w.op("reshape", y, *x.shape[:-len(sides)], *y.shape[4 - len(sides):])


def pool_all(w, name, x, p, exclude=0):
    """One or two sides at once; of three the first one after the others, as means and maxima allow."""
    sides = len(p.kernel)
    if sides < 3:
        return pool_sides(w, name, x, p, list(range(sides)), exclude)
    y = pool_sides(w, name, x, p, [1, 2], exclude)
    y = w.op("permute", y, 0, 1, 3, 4, 2)
    return w.op("permute", pool_sides(w, name, y, p, [0], exclude), 0, 1, 4, 2, 3)


def fits(p):
    return p.even() and all(2 * b <= k for b, k in zip(p.before, p.kernel))


def around(w, x, p, value):
    """x with its padding, and windows that have none."""
    x = padded(w, x, p, value)
    p.before, p.after = [0] * len(p.kernel), [0] * len(p.kernel)
    return x


@operator("MaxPool")
def max_pool(w, node, x):
    floating(x)
    if len(node.outputs) > 1:
        raise Inexpressible("MaxPool's indices")
    p = Windows(node, x, node.get("kernel_shape"))
    x = x if fits(p) else around(w, x, p, -math.inf)
    return pool_all(w, "max_pool2d", x, p)


@operator("AveragePool")
def average_pool(w, node, x):
    floating(x)
    p = Windows(node, x, node.get("kernel_shape"))
    if any(d != 1 for d in p.dilations):
        raise Inexpressible("AveragePool's dilations")
    exclude = not node.get("count_include_pad", 0)
    if fits(p):
        return pool_all(w, "avg_pool2d", x, p, int(exclude))
    if not exclude:
        return pool_all(w, "avg_pool2d", around(w, x, p, 0.0), p)
    ones = padded(w, filled(x, x.shape, 1.0), p, 0.0)
    x = around(w, x, p, 0.0)
    return w.op("div", pool_all(w, "avg_pool2d", x, p), pool_all(w, "avg_pool2d", ones, p))


@operator("LpPool")
def lp_pool(w, node, x):
    floating(x)
    p, power = Windows(node, x, node.get("kernel_shape")), node.get("p", 2)
    if any(d != 1 for d in p.dilations):
        raise Inexpressible("LpPool's dilations")
    y = w.op("pow", w.op("abs", x), power)
    y = pool_all(w, "avg_pool2d", y if fits(p) else around(w, y, p, 0.0), p)
    return w.op("pow", w.op("mul_scalar", y, math.prod(p.kernel)), 1 / power)


@operator("GlobalMaxPool")
def global_max_pool(w, node, x):
    floating(x)
    for d in range(2, len(x.shape)):
        x = w.op("max_dim", x, d, 1)
    return x


# ---- resizing ----

@operator("Resize", "Upsample")
def resize(w, node, x, roi=None, scales=None, sizes=None):
    """What td_interpolate has: sides of images, nearest at whole multiples, or linear."""
    floating(x)
    scales = roi if node.op == "Upsample" else scales
    mode, place = node.get("mode", "nearest"), node.get("coordinate_transformation_mode", "half_pixel")
    if node.get("keep_aspect_ratio_policy", "stretch") != "stretch" or node.get("exclude_outside", 0):
        raise Inexpressible("Resize's options")
    axes, old = node.get("axes", list(range(len(x.shape)))), list(x.shape)
    by = [1.0] * len(old)
    for d, given in zip(axes, scales.values if scales is not None and scales.values else whole(sizes)):
        by[d] = given if scales is not None and scales.values else given / old[d]
    if len(old) != 4 or by[:2] != [1.0, 1.0]:
        raise Inexpressible("Resize of others than images")
    whole_multiples = all(b >= 1 and b == int(b) for b in by[2:])
    if mode == "nearest" and whole_multiples and node.get("nearest_mode", "round_prefer_floor") != "ceil" and \
            place in ("half_pixel", "asymmetric") and (place == "half_pixel") == (node.op == "Resize"):
        return w.op("interpolate_by", x, *by[2:], 0, 0)
    # ONNX's antialiasing repeats the edges, which PIL's does not; its corners are those of sizes that are no integers.
    how = {"half_pixel": 0, "align_corners": 1}.get(place)
    if mode != "linear" or how is None or node.get("antialias", 0) or \
            how == 1 and any(s * b != int(s * b) for s, b in zip(old[2:], by[2:])):
        raise Inexpressible(f"Resize, {mode}, {place}")
    if scales is not None and scales.values and how != 1:
        return w.op("interpolate_by", x, *by[2:], 1, how)
    return w.op("interpolate", x, *[int(s * b) for s, b in zip(old[2:], by[2:])], 1, how)


# ---- normalisation ----

@operator("LayerNormalization")
def layer_norm(w, node, x, weight, bias=None):
    floating(x)
    axis = node.get("axis", -1) % len(x.shape)
    dims, eps = list(range(axis, len(x.shape))), node.get("epsilon", 1e-5)
    y = [w.op("layer_norm", x, weight, bias, eps)]
    if len(node.outputs) > 1:
        spread = w.op("var", x, 0.0, 1, *dims)
        y += [w.op("mean_dims", x, 1, *dims), w.op("rsqrt", w.op("add_scalar", spread, eps))]
    return y[:len(node.outputs)]


@operator("RMSNormalization")
def rms_norm(w, node, x, weight):
    floating(x)
    axis = node.get("axis", -1) % len(x.shape)
    sizes = list(x.shape[axis:])
    weight = w.op("contiguous", w.op("expand", weight, *sizes))
    return w.op("rms_norm_eps", x, weight, node.get("epsilon", 1e-5))


@operator("BatchNormalization")
def batch_norm(w, node, x, weight, bias, mean, var):
    floating(x)
    eps = node.get("epsilon", 1e-5)
    if not node.get("training_mode", 0):
        return w.op("batch_norm", x, weight, bias, mean, var, 0, eps)
    y, momentum = w.op("batch_norm", x, weight, bias, None, None, 1, eps), node.get("momentum", 0.9)
    dims = [0] + list(range(2, len(x.shape)))
    now = (w.op("mean_dims", x, 0, *dims), w.op("var", x, 0.0, 0, *dims))
    return [y] + [w.op("add", w.op("mul_scalar", old, momentum), w.op("mul_scalar", new, 1 - momentum))
                  for old, new in zip((mean, var), now)]


@operator("InstanceNormalization")
def instance_norm(w, node, x, weight, bias):
    floating(x)
    return w.op("instance_norm", x, weight, bias, node.get("epsilon", 1e-5))


@operator("GroupNormalization")
def group_norm(w, node, x, weight, bias):
    floating(x)
    if weight.shape[0] != x.shape[1]:
        raise Inexpressible("GroupNormalization of opset 18")
    return w.op("group_norm_eps", x, weight, bias, node.get("num_groups"), node.get("epsilon", 1e-5))


@operator("LpNormalization")
def lp_normalization(w, node, x):
    floating(x)
    axis, p = node.get("axis", -1) % len(x.shape), node.get("p", 2)
    size = w.op("norm", x, 1, axis) if p == 2 else w.op("sum_dims", x if p == 1 else w.op("abs", x), 1, axis)
    zero = Tensor(x.dtype, [], [0.0])
    return w.op("where", w.op("eq", size, zero), zero, w.op("div", x, size))


@operator("LRN")
def local_response(w, node, x):
    """The squares' mean over channels nearby, by average pooling along the channels."""
    floating(x)
    size = node.get("size")
    squares = w.op("reshape", w.op("mul", x, x), x.shape[0], 1, x.shape[1], -1)
    squares = w.op("pad", squares, 0, 0.0, 0, 0, (size - 1) // 2, 0, 0, 0, size - 1 - (size - 1) // 2, 0)
    mean = w.op("reshape", w.op("avg_pool2d", squares, size, 1, 1, 1, 0, 0, 0, 0, 1, 1), *x.shape)
    scale = w.op("add_scalar", w.op("mul_scalar", mean, node.get("alpha", 1e-4)), node.get("bias", 1.0))
    return w.op("div", x, w.op("pow", scale, node.get("beta", 0.75)))


# ---- recurrent layers, step by step ----

def rows(w, t, k, first, last):
    """Of direction k of t [directions, gates hidden, ...], rows of some gates."""
    y = w.op("squeeze", w.op("slice", t, 0, k, k + 1, 1), 0)
    return w.op("slice", y, 0, first, last, 1)


def gates_of(w, weights, k, hidden, order, x):
    """x W^T + b for each gate; `order` are the gates' numbers."""
    weight, bias, from_bias = weights
    return [w.op("linear", x, rows(w, weight, k, g * hidden, (g + 1) * hidden),
                 rows(w, bias, k, (from_bias + g) * hidden, (from_bias + g + 1) * hidden)) for g in order]


def lstm_step(w, node, x, h, c, hold, peep):
    i, o, f, g = [w.op("add", a, b) for a, b in zip(hold(0, 4, x), hold(4, 4, h))]
    looks = (lambda gate, t, p: gate) if peep is None else (lambda gate, t, p: w.op("add", gate, w.op("mul", t, peep(p))))
    i, f = (w.op("sigmoid", looks(gate, c, p)) for gate, p in ((i, 0), (f, 2)))
    c = w.op("add", w.op("mul", f, c), w.op("mul", i, w.op("tanh", g)))
    return w.op("mul", w.op("sigmoid", looks(o, c, 1)), w.op("tanh", c)), c


def gru_step(w, node, x, h, c, hold, peep):
    (z, r, n), (hz, hr, hn) = hold(0, 3, x), hold(3, 3, h)
    z, r = (w.op("sigmoid", w.op("add", a, b)) for a, b in ((z, hz), (r, hr)))
    if not node.get("linear_before_reset", 0):
        hn = hold(3, 3, w.op("mul", r, h))[2]
    else:
        hn = w.op("mul", r, hn)
    n = w.op("tanh", w.op("add", n, hn))
    return w.op("add", n, w.op("mul", z, w.op("sub", h, n))), c


def rnn_step(w, node, x, h, c, hold, peep):
    return w.op("tanh", w.op("add", hold(0, 1, x)[0], hold(1, 1, h)[0])), c


STEPS = {"LSTM": (lstm_step, 4), "GRU": (gru_step, 3), "RNN": (rnn_step, 1)}


@operator("LSTM", "GRU", "RNN")
def recurrent(w, node, x, weight, again, bias=None, lengths=None, h0=None, c0=None, peep=None):
    floating(x)
    step, gates = STEPS[node.op]
    if lengths is not None and len(set(lengths.values)) > 1 or "activations" in node.attributes or \
            "clip" in node.attributes:
        raise Inexpressible(node.op + "'s lengths, activations or clip")
    layout, direction, hidden = node.get("layout", 0), node.get("direction", "forward"), node.get("hidden_size")
    x = w.op("permute", x, 1, 0, 2) if layout else x
    steps, n, count = x.shape[0], x.shape[1], weight.shape[0]
    if lengths is not None and whole(lengths)[0] != steps:
        raise Inexpressible(node.op + "'s lengths")
    bias = bias if bias is not None else filled(x, [count, 2 * gates * hidden], 0.0)
    first = lambda t, k: filled(x, [n, hidden], 0.0) if t is None else w.op(
        "squeeze", w.op("slice", w.op("permute", t, 1, 0, 2) if layout else t, 0, k, k + 1, 1), 0)
    all_y, all_h, all_c = [], [], []
    for k in range(count):
        backwards = direction == "reverse" or k == 1
        hold = lambda at, many, t, k=k: gates_of(w, (weight if at == 0 else again, bias, at), k, hidden, range(many), t)
        look = None if peep is None else lambda g, k=k: rows(w, peep, k, g * hidden, (g + 1) * hidden)
        h, c, y = first(h0, k), first(c0, k), []
        for t in reversed(range(steps)) if backwards else range(steps):
            h, c = step(w, node, w.op("squeeze", w.op("slice", x, 0, t, t + 1, 1), 0), h, c, hold, look)
            y.append(h)
        all_y.append(w.op("stack", 0, *(y[::-1] if backwards else y)))
        all_h, all_c = all_h + [h], all_c + [c]
    y = w.op("stack", 1, *all_y)
    ends = [w.op("stack", 0, *all_h), w.op("stack", 0, *all_c)]
    if layout:
        y, ends = w.op("permute", y, 2, 0, 1, 3), [w.op("permute", t, 1, 0, 2) for t in ends]
    return [y, *ends][:len(node.outputs)]


# ---- attention, as its parts ----

def heads_of(w, x, heads):
    """[N,T,heads d] as [N,heads,T,d]."""
    if len(x.shape) == 4:
        return x
    return w.op("permute", w.op("reshape", x, x.shape[0], x.shape[1], heads, -1), 0, 2, 1, 3)


def allowed_places(node, queries, keys, offsets):
    """For each offset: which keys a query may look at, by causality and window."""
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    right = 0 if node.get("is_causal", 0) and (right < 0 or right > 0) else right
    return [[[not (left >= 0 and i + o - j > left or right >= 0 and j - i - o > right) for j in range(keys)]
             for i in range(queries)] for o in offsets]


def bias_of_mask(w, x, mask, keys):
    """What is added: 0 or -inf for a boolean mask; keys that it does not name are masked."""
    if mask.dtype == U8:
        mask = w.op("where", mask, Tensor(x.dtype, [], [0.0]), Tensor(x.dtype, [], [-math.inf]))
    missing = keys - mask.shape[-1]
    if missing > 0:
        zeros = [0] * len(mask.shape)
        mask = w.op("pad", mask, 0, -math.inf, *zeros, *zeros[1:], missing)
    return mask


def attention_bias(w, node, q, keys, mask, past, filled_keys):
    """The sum of all masks, [queries, keys] or wider."""
    queries = q.shape[2]
    lengths = whole(filled_keys) if filled_keys is not None else None
    offsets = [n - queries for n in lengths] if lengths else [past]
    open_keys = [[j < n for j in range(keys)] for n in lengths] if lengths else [[True] * keys]
    places = allowed_places(node, queries, keys, offsets)
    values = [0.0 if ok and open_keys[b][j] else -math.inf
              for b, of_batch in enumerate(places) for row in of_batch for j, ok in enumerate(row)]
    shape = [len(offsets), 1, queries, keys] if lengths else [queries, keys]
    bias = Tensor(q.dtype, shape, values)
    return bias if mask is None else w.op("add", bias, bias_of_mask(w, q, mask, keys))


@operator("Attention")
def attention(w, node, q, k, v, mask=None, past_key=None, past_value=None, filled_keys=None):
    floating(q, k, v)
    flat = len(q.shape) == 3
    q, k, v = (heads_of(w, t, node.get(name)) for t, name in
               ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads")))
    scale = math.sqrt(node.get("scale", 1 / math.sqrt(q.shape[3])))
    past = past_key.shape[2] if past_key is not None else 0
    if past_key is not None:
        k, v = w.op("cat", 2, past_key, k), w.op("cat", 2, past_value, v)
    present, more = (k, v), q.shape[1] // k.shape[1]
    if more > 1:  # each head of keys and values serves several of queries
        repeat = lambda t: w.op("reshape", w.op("expand", w.op("unsqueeze", t, 2), t.shape[0], t.shape[1], more,
                                                *t.shape[2:]), t.shape[0], -1, *t.shape[2:])
        k, v = repeat(k), repeat(v)
    scores = w.op("matmul", w.op("mul_scalar", q, scale), w.op("mul_scalar", w.op("transpose", k, 2, 3), scale))
    shown = scores
    if node.get("softcap", 0.0) > 0:
        cap = node.get("softcap")
        scores = w.op("mul_scalar", w.op("tanh", w.op("mul_scalar", scores, 1 / cap)), cap)
    shown = scores if node.get("qk_matmul_output_mode", 0) == 1 or node.get("softcap", 0.0) > 0 else shown
    bias = attention_bias(w, node, q, k.shape[2], mask, past, filled_keys)
    biased = w.op("add", scores, bias)
    nothing = w.op("eq", w.op("max_dim", bias, -1, 1), Tensor(bias.dtype, [], [-math.inf]))
    weights = w.cast(w.op("softmax", biased, -1), q.dtype)
    weights = w.op("where", nothing, Tensor(weights.dtype, [], [0.0]), weights)
    shown = {2: biased, 3: weights}.get(node.get("qk_matmul_output_mode", 0), shown)
    y = w.op("matmul", weights, v)
    if flat:
        y = w.op("reshape", w.op("permute", y, 0, 2, 1, 3), y.shape[0], y.shape[2], -1)
    return [y, *present, shown][:len(node.outputs)]


# ---- others ----

@operator("Sinh", "Cosh", "Tan", "Asinh", "Acosh", "Atanh")
def of_exponentials(w, node, x):
    floating(x)
    if node.op == "Tan":
        return w.op("div", w.op("sin", x), w.op("cos", x))
    if node.op in ("Sinh", "Cosh"):
        both = w.op("exp", x), w.op("exp", w.op("neg", x))
        return w.op("mul_scalar", w.op("sub" if node.op == "Sinh" else "add", *both), 0.5)
    if node.op == "Atanh":
        ratio = w.op("div", w.op("add_scalar", x, 1.0), w.op("add_scalar", w.op("neg", x), 1.0))
        return w.op("mul_scalar", w.op("log", ratio), 0.5)
    root = w.op("sqrt", w.op("add_scalar", w.op("mul", x, x), 1.0 if node.op == "Asinh" else -1.0))
    return w.op("log", w.op("add", x, root))


@operator("Dropout")
def dropout(w, node, x, ratio=None, training=None):
    if training is not None and training.values[0] and (ratio is None or ratio.values[0] > 0):
        raise Inexpressible("Dropout's draws")
    return [w.op("contiguous", x), Tensor(U8, x.shape, [1] * math.prod(x.shape))][:len(node.outputs)]


@operator("Einsum")
def einsum(w, node, *inputs):
    """All operands in the same dimensions, multiplied and summed."""
    floating(*inputs)
    left, _, right = node.get("equation").replace(" ", "").partition("->")
    parts = left.split(",")
    if "." in left or any(len(set(part)) < len(part) for part in parts):
        raise Inexpressible("Einsum's diagonals and ellipses")
    if "->" not in node.get("equation"):
        right = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    letters = right + "".join(sorted(set("".join(parts)) - set(right)))
    y = None
    for part, x in zip(parts, inputs):
        order = sorted(range(len(part)), key=lambda d: letters.index(part[d]))
        sizes = [x.shape[part.index(c)] if c in part else 1 for c in letters]
        x = w.op("reshape", w.op("permute", x, *order) if order else x, *sizes)
        y = x if y is None else w.op("mul", y, x)
    gone = range(len(right), len(letters))
    return w.cast(w.op("sum_dims", y, 0, *gone) if gone else y, inputs[0].dtype)


@operator("GatherND")
def gather_nd(w, node, x, index):
    only_rows, depth = node.get("batch_dims", 0), index.shape[-1]
    if only_rows:
        raise Inexpressible("GatherND's batch_dims")
    places = flat_places(x, index)
    y = w.op("reshape", x, math.prod(x.shape[:depth]), *x.shape[depth:])
    return w.op("reshape", w.op("index_select", y, 0, places), *index.shape[:-1], *x.shape[depth:])


def flat_places(x, index):
    """The rows of x that tuples of indices name, if the dimensions that they name were one."""
    depth, values = index.shape[-1], whole(index)
    places = []
    for i in range(0, len(values), depth):
        at = 0
        for d, v in enumerate(values[i:i + depth]):
            at = at * x.shape[d] + v % x.shape[d]
        places.append(at)
    return Tensor(I64, [len(places)], places)


@operator("ScatterND")
def scatter_nd(w, node, x, index, updates):
    floating(x)
    how, depth = node.get("reduction", "none"), index.shape[-1]
    if how not in ("none", "add"):
        raise Inexpressible("ScatterND's " + how)
    places, count = flat_places(x, index), math.prod(x.shape[:depth])
    y = w.op("reshape", x, count, -1)
    wide = Tensor(I64, [len(places.values), y.shape[1]], [v for v in places.values for _ in range(y.shape[1])])
    updates = w.op("reshape", updates, *wide.shape)
    if how == "none":
        updates = w.op("sub", updates, w.op("index_select", y, 0, places))
    return w.op("reshape", w.op("scatter_add", y, 0, wide, updates), *x.shape)


@operator("Compress")
def compress(w, node, x, condition):
    if "axis" not in node.attributes:
        x, axis = w.op("reshape", x, -1), 0
    else:
        axis = node.get("axis") % len(x.shape)
    places = [i for i, v in enumerate(condition.values) if v]
    return w.op("index_select", x, axis, Tensor(I64, [len(places)], places))


@operator("ReverseSequence")
def reverse_sequence(w, node, x, lengths):
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    n = whole(lengths)
    order = lambda t, b: n[b] - 1 - t if t < n[b] else t
    first = [order(t, b) for t in range(x.shape[0]) for b in range(x.shape[1])] if time == 0 else \
        [order(t, b) for b in range(x.shape[0]) for t in range(x.shape[1])]
    rest = math.prod(x.shape[2:])
    index = Tensor(I64, x.shape, [v for v in first for _ in range(rest)])
    return w.op("gather", x, time, index)


@operator("CenterCropPad")
def center_crop_pad(w, node, x, shape):
    axes = [d % len(x.shape) for d in node.get("axes", list(range(len(x.shape))))]
    y = x
    for d, size in zip(axes, whole(shape)):
        old = x.shape[d]
        if size < old:
            y = w.op("slice", y, d, (old - size) // 2, (old - size) // 2 + size, 1)
        elif size > old:
            before, after = [0] * len(x.shape), [0] * len(x.shape)
            before[d] = (size - old) // 2
            after[d] = size - old - before[d]
            y = w.op("pad", y, 0, 0.0, *before, *after)
    return w.op("contiguous", y) if y is x else y


@operator("EyeLike")
def eye_like(w, node, x):
    dtype = {1: F32, 11: F64, 7: I64}.get(node.get("dtype"), x.dtype)
    ones, k = Tensor(dtype, x.shape, [1] * math.prod(x.shape)), node.get("k", 0)
    return w.op("tril", w.op("triu", ones, k), k)


@operator("RotaryEmbedding")
def rotary(w, node, x, cos, sin, positions=None):
    floating(x)
    flat, heads = len(x.shape) == 3, node.get("num_heads", 0)
    x4 = w.op("permute", heads_of(w, x, heads), 0, 2, 1, 3) if flat else w.op("permute", x, 0, 2, 1, 3)
    size, turned = x4.shape[3], node.get("rotary_embedding_dim", 0) or x4.shape[3]
    head, tail = w.op("slice", x4, 3, 0, turned, 1), w.op("slice", x4, 3, turned, size, 1)
    if positions is not None:
        places = Tensor(I64, [len(positions.values)], whole(positions))
        cos, sin = (w.op("reshape", w.op("index_select", t, 0, places), *positions.shape, -1) for t in (cos, sin))
    cos, sin = (w.op("unsqueeze", w.op("slice", t, 2, 0, turned // 2, 1), 2) for t in (cos, sin))
    halves = [w.op("slice", head, 3, i, turned, 2) for i in (0, 1)] if node.get("interleaved", 0) else \
        [w.op("slice", head, 3, i * turned // 2, (i + 1) * turned // 2, 1) for i in (0, 1)]
    real = w.op("sub", w.op("mul", cos, halves[0]), w.op("mul", sin, halves[1]))
    imaginary = w.op("add", w.op("mul", sin, halves[0]), w.op("mul", cos, halves[1]))
    if node.get("interleaved", 0):
        joined = w.op("reshape", w.op("stack", 4, real, imaginary), *head.shape)
    else:
        joined = w.op("cat", 3, real, imaginary)
    y = w.op("cat", 3, joined, tail)
    return w.op("reshape", y, *x.shape) if flat else w.op("permute", y, 0, 2, 1, 3)
