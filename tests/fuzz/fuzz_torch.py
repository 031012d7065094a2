#!/usr/bin/env python3
"""Random programs of operations, in tandem and in PyTorch.

usage: fuzz_torch.py WORKER SECONDS [SEED]     WORKER: build/VARIANT/tests/worker_programs
       fuzz_torch.py WORKER each [COUNT [NAME...]]   COUNT (200) programs in each dtype of each operation alone

A program is run by PyTorch in f64, and by tandem in f64, f32 or bf16 on each instruction set of the machine.
Results and gradients may differ by the rounding of the dtype, measured over a tensor (L2), and by four times what
PyTorch itself is off in that dtype, or what the f64 results move when each operation's result is rounded at random
(NOISE: programs that are ill-conditioned). A program that fails is named by its seed: SEED runs it alone.
"""
import random
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    print("fuzz_torch: skipped: no PyTorch for this python3 (make deps-bench, or TANDEM_PYTHON)")
    sys.exit(0)
import torch.nn.functional as F

torch.set_num_threads(1)
DTYPES = {"f32": (0, torch.float32), "f64": (1, torch.float64), "bf16": (2, torch.bfloat16)}
ROUNDING = {"f64": 1e-12, "f32": 3e-6, "winograd": 3e-5, "bf16x3": 3e-5, "bf16": 3e-2}
# Relative errors of one operation: a few roundings; bf16x3 multiplies factors of 16 bits.
NOISE = {"f64": 2**-51, "f32": 2**-22, "winograd": 2**-19, "bf16x3": 2**-16, "bf16": 2**-7}
ROW_MAJOR, IMAGE, FILTER, I64 = 0, 1, 2, 4
UNARY = {
    "neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "relu": torch.relu, "gelu": F.gelu,
    "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "sum": torch.sum, "mean": torch.mean,
    "contiguous": torch.Tensor.contiguous, "abs": torch.abs, "sign": torch.sign, "floor": torch.floor,
    "ceil": torch.ceil, "round": torch.round, "reciprocal": torch.reciprocal, "rsqrt": torch.rsqrt, "sin": torch.sin,
    "cos": torch.cos, "erf": torch.erf, "selu": F.selu, "softplus": F.softplus, "softsign": F.softsign,
    "relu6": F.relu6, "hardsigmoid": lambda x: F.relu6(x + 3) / 6,  # its own slope is the f32 1/6
    "hardswish": F.hardswish, "mish": F.mish,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
# Where rounding decides: slopes have steps, or values have.
KINKS = ("relu", "abs", "selu", "softsign", "relu6", "hardsigmoid", "hardswish", "sign", "floor", "ceil", "round",
         "clamp", "hardtanh", "leaky_relu", "elu", "prelu", "maximum", "minimum", "sort", "topk", "where", "max_pool1d",
         "adaptive_max_pool1d", "adaptive_max_pool2d")
COMPARISONS = {name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
STEPS = ("sign", "floor", "ceil", "round", "sort", "topk", "where", "argmax", "argmax_last", "l1_loss", "hinge_loss",
         "hinge_embedding_loss", "cosine_embedding_loss")
BINARY = {"maximum": torch.maximum, "minimum": torch.minimum, "pow_tensor": torch.pow, "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "matmul": torch.matmul}


def batch_norm(x, w, b, mean, var, training, eps):
    """By its formula: F.batch_norm's gradient is wrong where x lies channels last and is one pixel wide (2.15)."""
    others, channel = [d for d in range(x.dim()) if d != 1], [-1] + [1] * (x.dim() - 2)
    m, v = (x.mean(others), x.var(others, correction=0)) if training else (mean, var)
    if training:
        mean.lerp_(m.detach(), 0.1)
        var.lerp_(x.detach().var(others), 0.1)
    y = (x - m.view(channel)) / (v.view(channel) + eps).sqrt()
    return y * (1 if w is None else w.view(channel)) + (0 if b is None else b.view(channel))


# Of each operation: how many of its first numbers are registers, and PyTorch's way.
OPS = {name: (1, f) for name, f in UNARY.items()}
OPS.update({name: (2, f) for name, f in BINARY.items()})
OPS.update({name: (2, f) for name, f in COMPARISONS.items()})
OPS.update({
    "add_scalar": (1, lambda x, s: x + s), "mul_scalar": (1, lambda x, s: x * s), "pow": (1, torch.pow),
    "sum_dim": (1, lambda x, d, keep: x.sum(d, bool(keep))), "mean_dim": (1, lambda x, d, keep: x.mean(d, bool(keep))),
    "max_dim": (1, lambda x, d, keep: x.max(d, bool(keep))[0]), "softmax": (1, torch.softmax),
    "log_softmax": (1, torch.log_softmax), "linear": (3, F.linear),
    "conv2d": (3, lambda x, w, b, sh, sw, ph, pw, dh, dw, groups:
               F.conv2d(x, w, b, (sh, sw), (ph, pw), (dh, dw), groups)),
    "max_pool2d": (1, lambda x, kh, kw, sh, sw, ph, pw, _, ceil, dh, dw:
                   F.max_pool2d(x, (kh, kw), (sh, sw), (ph, pw), (dh, dw), bool(ceil))),
    "avg_pool2d": (1, lambda x, kh, kw, sh, sw, ph, pw, without, ceil, *_:
                   F.avg_pool2d(x, (kh, kw), (sh, sw), (ph, pw), bool(ceil), not without)),
    "conv1d": (3, lambda x, w, b, s, p, d, groups: F.conv1d(x, w, b, s, p, d, groups)),
    "conv3d": (3, lambda x, w, b, *n: F.conv3d(x, w, b, n[:3], n[3:6], n[6:9], n[9])),
    "conv_transpose1d": (3, lambda x, w, b, s, p, d, more, groups: F.conv_transpose1d(x, w, b, s, p, more, groups, d)),
    "max_pool1d": (1, lambda x, k, s, p, ceil, d: F.max_pool1d(x, k, s, p, d, bool(ceil))),
    "avg_pool1d": (1, lambda x, k, s, p, ceil, without: F.avg_pool1d(x, k, s, p, bool(ceil), not without)),
    "conv_transpose2d": (3, lambda x, w, b, sh, sw, ph, pw, dh, dw, oh, ow, groups: F.conv_transpose2d(
        x, w, b, (sh, sw), (ph, pw), (oh, ow), groups, (dh, dw))),
    "group_norm": (3, lambda x, w, b, groups: F.group_norm(x, groups, w, b, 1e-3)),
    "instance_norm": (3, lambda x, w, b, eps: F.instance_norm(x, weight=w, bias=b, eps=eps)),
    "rms_norm": (2, lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-3)),
    "interpolate": (1, lambda x, h, w, mode, how: F.interpolate(x, (h, w), mode="bilinear", align_corners=how == 1,
                                                                antialias=how == 2) if mode else
                    F.interpolate(x, (h, w))),
    "adaptive_avg_pool1d": (1, F.adaptive_avg_pool1d), "adaptive_max_pool1d": (1, F.adaptive_max_pool1d),
    "adaptive_max_pool2d": (1, lambda x, h, w: F.adaptive_max_pool2d(x, (h, w))),
    "adaptive_avg_pool2d": (1, lambda x, h, w: F.adaptive_avg_pool2d(x, (h, w))),
    "bce_with_logits": (2, lambda x, t, how: F.binary_cross_entropy_with_logits(
        x, torch.sigmoid(t), reduction=REDUCTIONS[how])),
    "huber_loss": (2, lambda x, t, delta: F.huber_loss(x, t, delta=delta)),
    "smooth_l1_loss": (2, lambda x, t, beta: F.smooth_l1_loss(x, t, beta=beta)),
    "l1_loss": (2, lambda x, t, how: F.l1_loss(x, t, reduction=REDUCTIONS[how])),
    "hinge_loss": (2, lambda x, t, how: reduce(torch.relu(1 - x * torch.sign(t)), how)),
    "hinge_embedding_loss": (2, lambda x, t, how: F.hinge_embedding_loss(
        x, torch.sign(t), reduction=REDUCTIONS[how])),
    "cosine_embedding_loss": (3, lambda a, b, t: by_sign(F.cosine_similarity(a, b, eps=1e-6), t)),
    "nll_loss": (3, lambda x, labels, w, _, ignore, how: F.nll_loss(  # the gradient of images in another order fails in 2.15
        x.contiguous(), labels, w, ignore_index=ignore or -100, reduction=REDUCTIONS[how])),
    "argmax": (1, lambda x, d, keep: x.argmax(d, bool(keep))),
    "argmax_last": (1, lambda x, d, keep: x.shape[d] - 1 - x.flip(d).argmax(d, bool(keep))),
    "kl_div": (2, lambda x, t: F.kl_div(x, torch.sigmoid(t), reduction="sum") / x.numel()),
    "cosine_similarity": (2, F.cosine_similarity),
    "global_avg_pool2d": (1, lambda x: x.mean((2, 3), keepdim=True)), "batch_norm": (5, batch_norm),
    "layer_norm": (3, lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps)),
    "cross_entropy": (3, lambda x, labels, w, s, ignore, how: F.cross_entropy(
        x, labels, w, ignore_index=ignore or -100, reduction=REDUCTIONS[how], label_smoothing=s)),
    "mse_loss": (2, F.mse_loss), "embedding": (2, F.embedding), "transpose": (1, torch.transpose),
    "permute": (1, lambda x, *order: x.permute(order)), "reshape": (1, lambda x, *shape: x.reshape(shape)),
    "slice": (1, lambda x, d, a, b, step: x[(slice(None),) * d + (slice(a, b, step),)]),
    "expand": (1, lambda x, *shape: x.expand(shape)),
    "clamp": (1, torch.clamp), "hardtanh": (1, F.hardtanh), "leaky_relu": (1, F.leaky_relu), "elu": (1, F.elu),
    "prelu": (2, lambda x, w: torch.where(x > 0, x, x * w)), "where": (2, lambda x, y: torch.where(x < y, x, y)),
    "unsqueeze": (1, torch.unsqueeze), "squeeze": (1, torch.squeeze), "flip": (1, lambda x, d: x.flip(d)),
    "split": (1, lambda x, d, i, *sizes: x.split(sizes, d)[i]), "tile": (1, lambda x, *repeats: x.tile(repeats)),
    "pad": (1, lambda x, mode, value, *pads: pad(x, mode, value, pads)), "tril": (1, torch.tril), "triu": (1, torch.triu),
    "sum_dims": (1, lambda x, keep, *dims: x.sum(dims, bool(keep))),
    "mean_dims": (1, lambda x, keep, *dims: x.mean(dims, bool(keep))),
    "var": (1, lambda x, correction, keep, *dims: x.var(dims, correction=correction, keepdim=bool(keep))),
    "std": (1, lambda x, correction, keep, *dims: x.std(dims, correction=correction, keepdim=bool(keep))),
    "norm": (1, lambda x, keep, *dims: torch.linalg.vector_norm(x, dim=dims, keepdim=bool(keep))),
    "prod_dim": (1, lambda x, d, keep: x.prod(d, bool(keep))), "cumsum": (1, torch.cumsum),
    "sort": (1, lambda x, d, descending, _: x.sort(d, bool(descending))[0]),
    "topk": (1, lambda x, d, k, _: x.topk(k, d)[0]),
})
EACH = sorted(set(OPS) - {"sum", "mean", "contiguous"}) + ["gather", "index_select", "scatter_add", "stack", "cat",
                                                               "conv_norm"]


def by_sign(cosine, t):
    """F.cosine_embedding_loss, which itself adds 1e-12 to squares."""
    return torch.where(t > 0, 1 - cosine, torch.relu(cosine)).mean()


def reduce(losses, how):
    return losses.mean() if how == 0 else losses.sum() if how == 1 else losses


def pad(x, mode, value, pads):
    """PyTorch's own reflects and replicates the last dimensions only."""
    dims = x.dim()
    for d in range(dims):
        before, after = pads[d], pads[dims + d]
        if mode == 0:
            ends = [torch.full_like(x.narrow(d, 0, 1).expand(*x.shape[:d], n, *x.shape[d + 1:]), value)
                    for n in (before, after)]
        else:
            n = x.shape[d]
            at = [[range(before, 0, -1), range(n - 2, n - 2 - after, -1)], [[0] * before, [n - 1] * after]][mode - 1]
            ends = [x.index_select(d, torch.tensor(list(part), dtype=torch.long)) for part in at]
        x = torch.cat([ends[0], x, ends[1]], d)
    return x


def apply(name, numbers, registers):
    """One operation, in the dtype of the registers."""
    reg = lambda r: None if r < 0 else registers[r]
    if name == "cat":
        return torch.cat([reg(r) for r in numbers[1:]], numbers[0])
    if name == "stack":
        return torch.stack([reg(r) for r in numbers[1:]], numbers[0])
    if name in ("gather", "index_select", "scatter_add"):
        x, d, index = reg(numbers[0]), numbers[1], reg(numbers[2])
        if name == "scatter_add":
            return x.scatter_add(d, index, reg(numbers[3]))
        return x.gather(d, index) if name == "gather" else x.index_select(d, index)
    if name == "slice" and numbers[4] < 0:
        x, d, first, last, step = reg(numbers[0]), *numbers[1:]
        return x.index_select(d, torch.arange(first, last, step))
    if name == "conv_norm":  # the convolution, its normalisation, the activation (none, relu, gelu), the addend
        y = apply("conv2d", numbers[:10], registers)
        y = batch_norm(y, *map(reg, numbers[10:14]), *numbers[14:16])
        y = y if numbers[17] < 0 else y + reg(numbers[17])
        return (lambda y: y, torch.relu, F.gelu)[numbers[16]](y)
    count, f = OPS[name]
    return f(*[reg(r) for r in numbers[:count]], *numbers[count:])


class Program:
    """Is made operation by operation, while PyTorch computes it in f64."""

    def __init__(self, seed, op=None, dtype=None):
        self.op_alone = op
        self.seed, self.random = seed, random.Random(seed)
        self.torch_random = torch.Generator().manual_seed(seed)
        pick = self.random.choice
        self.dtype = dtype or pick(["f64", "f32", "f32", "bf16"])
        self.precision = pick(["fp32", "fp32", "bf16x3", "bf16"]) if self.dtype == "f32" and not op else "fp32"
        self.winograd = int(self.dtype == "f32" and self.random.random() < 0.3 and not op)
        self.half = self.dtype == "bf16" or self.precision == "bf16"
        self.kind = "bf16" if self.half else self.precision if self.precision == "bf16x3" else \
            "winograd" if self.winograd else self.dtype
        self.lines, self.registers, self.exact, self.inputs, self.initial = [], [], [], [], {}

    def shape(self, dims, most=7):
        return [self.random.randint(1, self.random.choice([3, most, most])) for _ in range(dims)]

    def input(self, shape, weight=False, positive=False, labels=None, trained=True):
        shape = [int(size) for size in shape]
        value = torch.randn(shape, generator=self.torch_random, dtype=torch.float64)
        value = value.abs() + 0.5 if positive else value
        value = value.to(torch.bfloat16 if self.half else torch.float32).double()
        if labels is not None:
            value = torch.randint(0, labels, shape, generator=self.torch_random)
        dtype = I64 if labels is not None else 0 if weight and self.dtype == "bf16" else DTYPES[self.dtype][0]
        layout = self.random.choice([ROW_MAJOR, IMAGE, FILTER] if len(shape) == 4 else
                                    [ROW_MAJOR, FILTER] if len(shape) == 2 else [ROW_MAJOR])
        trained = trained and labels is None and self.random.random() < 0.9
        self.lines.append(("input", [dtype, layout, int(trained), *shape]))
        self.initial[len(self.registers)] = value.clone()
        self.inputs.append((len(self.registers), trained))
        self.registers.append(value.requires_grad_(trained))
        self.exact.append(True)
        return len(self.registers) - 1

    def op(self, name, *numbers):
        result = apply(name, numbers, self.registers)
        self.lines.append((name, list(numbers)))
        self.registers.append(result)
        self.exact.append(name in VIEWS and self.exact[numbers[1 if name == "cat" else 0]])
        return len(self.registers) - 1

    def smooth(self, r):
        """Whether rounding cannot change who is the largest, or a sign."""
        if self.exact[r] or self.kind == "f64":
            return True
        values = self.registers[r].detach().flatten().sort()[0]
        gaps = values.diff()
        gap = 1e-4 if self.kind == "bf16x3" or self.winograd else 2e-6
        return not self.half and bool(((gaps == 0) | (gaps > gap)).all() and values.abs().min() > gap)

    def make_alone(self):
        """One operation on one input, which it fits."""
        for attempt in range(200):
            self.lines, self.registers, self.exact, self.inputs, self.initial = [], [], [], [], {}
            positive = self.op_alone in ("log", "sqrt", "rsqrt", "reciprocal", "pow_tensor") or attempt > 100
            x = self.input(self.shape(self.random.choice([1, 2, 3, 4, 5]), 9), positive=positive)
            if grow(self, x, self.op_alone) is not None:
                break
        else:
            raise RuntimeError("no input fits " + self.op_alone)
        return self.close()

    def make(self):
        if self.op_alone:
            return self.make_alone()
        x = self.input(self.shape(self.random.choice([2, 2, 3, 4, 4, 4, 5]), self.random.choice([7, 9, 19, 40])))
        for _ in range(self.random.randint(1, 6)):
            x = next(filter(lambda y: y is not None, (grow(self, x) for _ in range(20))), x)
            if self.registers[x].numel() > 200000:
                break
            if (largest := self.registers[x].detach().abs().max()) > 30:
                x = self.op("mul_scalar", x, 2.0 ** -int(torch.log2(largest)))
        if all(name in ("input", "contiguous") for name, _ in self.lines):
            self.op("neg", x)  # otherwise the result may be the leaf
        return self.close()

    def close(self):
        shape = self.registers[-1].shape
        self.dy = torch.randn(shape, generator=self.torch_random, dtype=torch.float64).bfloat16().double()
        return self

    def text(self):
        parts = [f"program {['fp32', 'bf16', 'bf16x3'].index(self.precision)} {self.winograd}\n".encode()]
        for i, (name, numbers) in enumerate(self.lines):
            parts.append((" ".join([name, *map(repr, numbers)]) + "\n").encode())
            if name == "input":
                parts.append(self.initial[i].double().contiguous().numpy().tobytes())
        return b"".join(parts) + b"end\n" + self.dy.contiguous().numpy().tobytes()

    def run(self, dtype, noise=0.0, phase=0):
        """The results in PyTorch: the last register, and of each input the gradient, or its value. noise: the relative
        error of each operation's result, the same for equal values."""
        registers = []
        for i, (name, numbers) in enumerate(self.lines):
            if name == "input":
                value = self.initial[i].clone()
                value = value.to(dtype) if value.is_floating_point() else value
                registers.append(value.requires_grad_(bool(numbers[2])))
            else:
                result = apply(name, numbers, registers)
                if noise and result.is_floating_point() and name not in VIEWS:
                    rounded = lambda t: t * (1 + noise * torch.sin(1e7 * t.detach() + phase))
                    result = rounded(result)
                    if result.requires_grad:
                        result.register_hook(rounded)
                registers.append(result)
        y = registers[-1]
        if y.grad_fn is not None:
            y.backward(self.dy.to(y.dtype))
        results = [y] + [registers[r].grad if trained else registers[r] for r, trained in self.inputs]
        return [None if t is None else t.detach().double() for t in results]


REDUCTIONS = ["mean", "sum", "none"]
EACH_ALONE = ["gather", "index_select", "scatter_add", "stack"]
VIEWS = ["transpose", "permute", "reshape", "slice", "expand", "cat", "contiguous"]
ON_IMAGES = ["conv2d", "conv2d", "conv_norm", "max_pool2d", "avg_pool2d", "global_avg_pool2d", "batch_norm", "permute",
             "conv_transpose2d", "group_norm", "interpolate", "adaptive_avg_pool2d", "cross_entropy"]
ON_MATRICES = ["matmul", "linear", "batch_norm", "layer_norm", "cross_entropy", "embedding", "transpose", "mse_loss"]


def grow(p, x, name=None):
    """One more operation on register x, or None if the one that was drawn does not fit."""
    t, pick, some = p.registers[x], p.random.choice, p.random.randint
    shape, dims = list(t.shape), t.dim()
    low, high = (t.min().item(), t.max().item()) if t.numel() else (0, 0)
    special = {2: ON_MATRICES, 4: ON_IMAGES}.get(dims, [])
    name = name or pick(special if special and p.random.random() < 0.6 else sorted(set(UNARY) - {"sum", "mean"}) + VIEWS * 2 +
                ["sum", "mean"][:some(0, 3)] + sorted(set(OPS) - set(STEPS) - set(COMPARISONS)) + EACH_ALONE + ["matmul"] * 3)
    maybe = lambda size, **how: p.input([size], weight=True, **how) if p.random.random() < 0.7 else -1
    if name in ("log", "sqrt") and low < 0.05 or name == "exp" and high > 5 or name in KINKS and not p.smooth(x) or \
            name in ("rsqrt", "reciprocal") and low < 0.3 or name in STEPS and not p.exact[x] or \
            name == "softplus" and high > 20:  # PyTorch's is x from there on
        return None
    if name == "stack":
        return p.op(name, some(0, dims), x, p.input(shape), x) if dims < 6 else None
    if name in ("clamp", "hardtanh"):
        return p.op(name, x, *sorted([some(-8, 8) / 8 + 0.03, some(-8, 8) / 8 + 1.53]))
    if name in ("leaky_relu", "elu"):
        return p.op(name, x, some(1, 12) / 8)
    if name in ("prelu", "where", "pow_tensor", "maximum", "minimum"):
        if name == "pow_tensor" and low < 0.3 or high > 8:
            return None
        y = p.input([pick([size, size, 1]) for size in shape][some(0, 1) * some(0, dims):])
        if name == "prelu" and p.registers[y].dim() == 1 and dims > 2:
            return None  # a vector is of channels there
        both = torch.cat([t.flatten(), p.registers[y].flatten()]).detach().sort()[0].diff()
        if name != "prelu" and name != "pow_tensor" and p.kind != "f64" and ((both < 1e-4) & (both > 0)).any():
            return None
        return p.op(name, x, y)
    if name in COMPARISONS:
        y = p.input(shape[some(0, dims):], labels=3)
        return p.op(name, p.input(shape, labels=3), y)
    if name in UNARY:
        return p.op(name, x) if dims or name not in ("sum", "mean") else None
    if name == "matmul":
        if dims < 2:
            return None
        batch = [pick([1, size]) for size in shape[:-2]][some(0, dims - 2):]
        batch = pick([batch, [1] + batch, [], [1], [some(1, 3)] if dims == 2 else batch])
        if p.random.random() < 0.5 or dims + len(batch) > 7:
            return p.op(name, x, p.input(batch + [shape[-1], some(1, pick([5, 70]))], weight=p.random.random() < 0.3))
        return p.op(name, p.input(batch + [some(1, pick([5, 70])), shape[-2]]), x)
    if name in BINARY:
        other = [pick([size, size, 1]) for size in shape][some(0, 1) * some(0, dims):]
        other = [some(1, 3)] + other if dims == len(other) < 5 and p.random.random() < 0.2 else other
        y = p.input(other, positive=name == "div")
        return p.op(name, x, y) if p.random.random() < 0.5 or name == "div" else p.op(name, y, x)
    if name in ("add_scalar", "mul_scalar", "pow"):
        exponent = pick([0.5, -0.5, 1.5, 3.0, -1.0]) if low > 0.3 else 2.0
        return p.op(name, x, exponent if name == "pow" else some(-8, 8) / 4)
    if name in ("global_avg_pool2d", "conv2d", "conv_norm", "max_pool2d", "avg_pool2d", "conv_transpose2d",
                "interpolate", "adaptive_avg_pool2d", "adaptive_max_pool2d"):
        return windows(p, x, name, maybe) if dims == 4 else None
    if name == "unsqueeze":
        return p.op(name, x, some(0, dims)) if dims < 6 else None
    if dims == 0:
        return None
    d = some(0, dims - 1)
    if name == "squeeze":
        return p.op(name, x, shape.index(1)) if 1 in shape else None
    if name in ("flip", "cumsum"):
        return p.op(name, x, d)
    if name == "split":
        first = some(0, shape[d])
        return p.op(name, x, d, 1, first, shape[d] - first) if first < shape[d] else None
    if name == "tile":
        repeats = [some(1, 3) for _ in range(some(1, min(dims + 1, 6)))]
        return p.op(name, x, *repeats) if t.numel() < 2000 and max(repeats) > 1 else None
    if name == "pad":
        mode = some(0, 2)
        most = [min(size - 1, 3) if mode == 1 else 3 for size in shape]
        sizes = [some(0, m) for m in most + most]
        return p.op(name, x, mode, some(-8, 8) / 4, *sizes) if t.numel() < 2000 and max(sizes) > 0 else None
    if name in ("tril", "triu"):
        return p.op(name, x, some(-4, 4)) if dims > 1 else None
    if name in ("sum_dims", "mean_dims", "var", "std", "norm"):
        along = p.random.sample(range(dims), some(1, dims))
        if name in ("var", "std") and min([shape[q] for q in along]) < 3 or name in ("std", "norm") and low == high:
            return None
        return p.op(name, x, *([some(0, 1)] if name in ("var", "std") else []), some(0, 1), *along)
    if name == "prod_dim":
        return p.op(name, x, d, some(0, 1)) if min(max(-low, high), 1e9) ** min(shape[d], 30) < 1e3 else None
    if name == "sort":
        return p.op(name, x, d, some(0, 1), 0)
    if name == "topk" and t.unique().numel() == t.numel():  # of equal ones PyTorch takes any
        return p.op(name, x, d, some(1, shape[d]), 0)
    if name == "index_select":
        return p.op(name, x, d, p.input([some(1, 9)], labels=shape[d]))
    if name in ("gather", "scatter_add"):
        sizes = [some(1, 9) if q == d else some(1, size) for q, size in enumerate(shape)]
        index = p.input(sizes, labels=shape[d])
        return p.op(name, x, d, index, *([p.input(sizes)] if name == "scatter_add" else []))
    if name in ("sum_dim", "mean_dim") or name == "max_dim" and p.smooth(x):
        return p.op(name, x, d, some(0, 1))
    if "softmax" in name:
        return p.op(name, x, d)
    if name == "linear":
        out = some(1, 33)
        return p.op(name, x, p.input([out, shape[-1]], weight=True), maybe(out))
    if name == "layer_norm":
        return p.op(name, x, maybe(shape[-1]), maybe(shape[-1]), 1e-3) if shape[-1] > 1 else None
    if name == "batch_norm" and dims in (2, 4) and t.numel() // shape[1] >= 4:
        return p.op(name, x, *norm_inputs(p, shape[1], maybe), some(0, 1), 1e-2)
    if name == "mse_loss":
        return p.op(name, x, p.input(shape))
    if name in ("cross_entropy", "nll_loss") and dims in (2, 4) and shape[1] > 1:  # with one class all is 0, but for rounding
        labels, ignore = p.input(shape[:1] + shape[2:], labels=shape[1]), some(0, shape[1] - 1)
        ignore = 0 if bool((p.registers[labels] == ignore).all()) else ignore
        weight = -1 if p.half or p.random.random() < 0.5 else p.input([shape[1]], positive=True, trained=False)
        return p.op(name, x, labels, weight, pick([0.0, 0.1]), ignore, some(0, 2))
    if name == "group_norm" and dims > 1 and t.numel() > 0:
        groups = pick([g for g in range(1, shape[1] + 1) if shape[1] % g == 0])
        return p.op(name, x, *[-1, -1] if p.half else [maybe(shape[1]), maybe(shape[1])], groups) if \
            t.numel() // shape[0] // groups > 1 else None
    if name == "rms_norm":
        return p.op(name, x, -1 if p.half else maybe(shape[-1]))
    if name == "instance_norm" and dims > 2 and t.numel() // shape[0] // shape[1] > 1:
        return p.op(name, x, *[-1, -1] if p.half else [maybe(shape[1]), maybe(shape[1])], 1e-3)
    if name in ("conv1d", "conv_transpose1d", "max_pool1d", "avg_pool1d", "adaptive_avg_pool1d",
                "adaptive_max_pool1d"):
        return windows1d(p, x, name, maybe) if dims == 3 else None
    if name == "conv3d":
        return conv3d(p, x, maybe) if dims == 5 else None
    if name in ("argmax", "argmax_last"):  # of equal ones PyTorch may take any
        return p.op(name, x, d, some(0, 1)) if t.unique().numel() == t.numel() else None
    if name in ("l1_loss", "hinge_loss", "hinge_embedding_loss"):
        return p.op(name, x, p.input(shape, trained=name == "l1_loss"), some(0, 2))
    if name == "cosine_embedding_loss":
        return p.op(name, x, p.input(shape), p.input(shape[:1], trained=False)) if dims == 2 and shape[1] > 1 else None
    if name == "cosine_similarity":
        return p.op(name, x, p.input(shape), d) if shape[d] > 1 else None  # of one number: a sign, whose gradient is 0
    if name in ("bce_with_logits", "kl_div", "huber_loss", "smooth_l1_loss"):
        numbers = {"kl_div": [], "huber_loss": [0.7], "smooth_l1_loss": [0.7]}.get(name, [some(0, 2)])
        return p.op(name, x, p.input(shape), *numbers)
    if name == "embedding" and dims == 2:
        return p.op(name, p.input(p.shape(some(1, 2)), labels=shape[0]), x)
    if name in ("transpose", "permute"):
        return p.op(name, x, *([d, some(0, dims - 1)] if name == "transpose" else p.random.sample(range(dims), dims)))
    if name == "reshape":
        return p.op(name, x, *pick([[-1], shape[::-1], shape[:-2] + [-1], [1] + shape if dims < 6 else [-1]]))
    if name == "slice":
        begin = some(0, shape[d] - 1)
        if p.random.random() < 0.3 and begin > 0:
            return p.op(name, x, d, begin, some(0, begin - 1), -some(1, 3))
        return p.op(name, x, d, begin, some(begin + 1, shape[d]), some(1, 3))
    if name == "expand":
        return p.op(name, x, *[some(1, 4) if size == 1 else size for size in shape])
    if name == "cat":
        other = shape[:d] + [some(1, 4)] + shape[d + 1:]
        return p.op(name, d, x, p.input(other)) if p.random.random() < 0.7 else p.op(name, d, x, x)
    return None


def windows1d(p, x, name, maybe):
    pick, some = p.random.choice, p.random.randint
    _, c, length = p.registers[x].shape
    if "adaptive" in name:
        return p.op(name, x, some(1, 9))
    k, stride, dilation, groups = some(1, 4), some(1, 3), some(1, 2), pick([1, 1, c])
    pad, out = some(0, k // 2), groups * some(1, 4)
    if "pool" in name:
        dilation = 1 if name == "avg_pool1d" or length <= 2 * k else dilation
        ceil = some(0, 1)
        fits = length + 2 * pad + ceil * (stride - 1) >= dilation * (k - 1) + 1
        return p.op(name, x, k, stride, pad, ceil, some(0, 1) if name == "avg_pool1d" else dilation) if fits else None
    if name == "conv_transpose1d":
        more = some(0, stride - 1)
        fits = (length - 1) * stride - 2 * pad + dilation * (k - 1) + more >= 0
        out = out // groups
        return p.op(name, x, p.input([c, out, k], weight=True), maybe(out * groups), stride, pad, dilation, more,
                    groups) if fits else None
    if length + 2 * pad < dilation * (k - 1) + 1:
        return None
    return p.op(name, x, p.input([out, c // groups, k], weight=True), maybe(out), stride, pad, dilation, groups)


def conv3d(p, x, maybe):
    pick, some = p.random.choice, p.random.randint
    _, c, *sizes = p.registers[x].shape
    k, stride, dilation = ([some(1, most) for _ in range(3)] for most in (3, 2, 2))
    pad, groups = [some(0, size // 2) for size in k], pick([1, 1, c])
    out = groups * some(1, 3)
    if any(size + 2 * q < e * (size_k - 1) + 1 for size, q, e, size_k in zip(sizes, pad, dilation, k)):
        return None
    return p.op("conv3d", x, p.input([out, c // groups, *k], weight=True), maybe(out), *stride, *pad, *dilation, groups)


def norm_inputs(p, channels, maybe):
    return [maybe(channels), maybe(channels), p.input([channels], weight=True, trained=False),
            p.input([channels], weight=True, positive=True, trained=False)]


def windows(p, x, name, maybe):
    """A convolution or a pooling, of any window that fits."""
    pick, some = p.random.choice, p.random.randint
    n, c, h, w = p.registers[x].shape
    if name == "global_avg_pool2d":
        return p.op(name, x)
    if name in ("adaptive_avg_pool2d", "adaptive_max_pool2d"):
        return p.op(name, x, some(1, 9), some(1, 9))
    if name == "interpolate":
        mode, to = some(0, 1), [some(1, 15), some(1, 15)]  # antialias to one column is wrong in 2.15 (row-major x)
        return p.op(name, x, *to, mode, some(0, 1 if p.half or to[1] == 1 else 2) if mode else 0)
    k = [pick([1, 2, 3, 3, size, size + 1, some(1, 7)]) for size in (h, w)]
    stride, dilation = [pick([1, 1, 2, some(1, 4)]) for _ in k], [pick([1, 1, 1, 2]) for _ in k]
    if "pool" in name:
        pad = [some(0, size // 2) for size in k]
        dilated = name == "max_pool2d" and h > 2 * k[0] and w > 2 * k[1]  # otherwise a window may see padding alone
        dilation = dilation if dilated else [1, 1]
        ceil = some(0, 1)
        fits = all(size + 2 * q + ceil * (s - 1) >= e * (size_k - 1) + 1
                   for size, q, s, e, size_k in zip((h, w), pad, stride, dilation, k))
        if not fits or name == "max_pool2d" and not p.smooth(x):
            return None
        return p.op(name, x, *k, *stride, *pad, some(0, 1), ceil, *dilation)
    pad = [pick([0, size // 2, some(0, 3)]) for size in k]
    if name == "conv_transpose2d":
        more = [some(0, s - 1) for s in stride]
        if min((size - 1) * s - 2 * q + e * (size_k - 1) + o for size, s, q, e, size_k, o in
               zip((h, w), stride, pad, dilation, k, more)) < 0:
            return None
        groups = pick([1, 1, c])
        out = some(1, 5)
        return p.op(name, x, p.input([c, out, *k], weight=True), maybe(out * groups), *stride, *pad, *dilation,
                    *more, groups)
    room = [size + 2 * q - e * (size_k - 1) for size, q, e, size_k in zip((h, w), pad, dilation, k)]
    if min(room) < 1:
        return None
    groups = pick([1, 1, c, pick([g for g in range(1, c + 1) if c % g == 0])])
    out = groups * some(1, pick([3, 3, 40 // groups + 1]))
    filters = p.input([out, c // groups, *k], weight=True)
    numbers = [x, filters, maybe(out), *stride, *pad, *dilation, groups]
    if name == "conv2d":
        return p.op(name, *numbers)
    size = [(r - 1) // s + 1 for r, s in zip(room, stride)]
    if n * size[0] * size[1] < 4:
        return None
    numbers[2] = -1
    add = p.input([n, out, *size]) if p.random.random() < 0.4 else -1
    activation = 1 if p.kind == "f64" else 2 if add < 0 and some(0, 1) else 0
    return p.op(name, *numbers, *norm_inputs(p, out, maybe), some(0, 1), 1e-2, activation, add)


def off(got, want):
    """How far a result is off, over the whole tensor."""
    return (got - want).norm().item() if got.numel() == want.numel() else float("inf")


def allowed(p, truth, torchs):
    """For each result: the rounding of the dtype, and four times what PyTorch is off in it."""
    scale = max([1.0] + [t.abs().max().item() for t in truth if t is not None])
    torchs = [t if t is None else torch.where(t.isnan(), want, t) for t, want in zip(torchs, truth)]  # NaN: its
    return [0.0 if want is None else ROUNDING[p.kind] * (
        want.norm().item() + 0.1 * scale * want.numel() ** 0.5) + 4 * off(low, want)
            for want, low in zip(truth, torchs)]


def moved(p, truth):
    """For each result: 16 times how far rounding at random moves it."""
    runs = [p.run(torch.float64, NOISE[p.kind], phase) for phase in range(4)]
    return [0.0 if want is None else 16 * max(off(run[i], want) for run in runs) for i, want in enumerate(truth)]


def read_results(data, at, truth):
    """The tensors from data[at:], and where they end; None: the worker stopped before."""
    results = []
    for _ in truth:
        n, begin = int.from_bytes(data[at:at + 8], "little"), at + 8
        at = begin + 8 * n
        if len(data) < at or n == 0:
            return None, at
        results.append(torch.frombuffer(bytearray(data[begin:at]), dtype=torch.float64))
    return results, at


def report(p, level, what):
    print(f"FAIL  seed {p.seed}, {p.kind}, {level}: {what}")
    for name, numbers in p.lines:
        print("      |", name, *numbers)


def run_batch(worker, levels, seeds, op=None, dtype=None):
    """Returns how many programs failed."""
    programs = [Program(seed, op, dtype).make() for seed in seeds]
    text = b"".join(p.text() for p in programs)
    truths = [p.run(torch.float64) for p in programs]
    bounds = [allowed(p, truth, p.run(torch.bfloat16 if p.half else DTYPES[p.dtype][1]))
              for p, truth in zip(programs, truths)]
    failed = set()
    for threads, level in enumerate(levels, 1):
        run = subprocess.run([worker, level, str(threads)], input=text, capture_output=True, timeout=600)
        at = 0
        for p, truth, bound in zip(programs, truths, bounds):
            got, at = read_results(run.stdout, at, truth)
            if got is None:
                report(p, level, f"the program ended ({run.returncode}): {run.stderr.decode()[-600:]}")
                return len(failed | {p.seed})
            for i, want in enumerate(truth):
                if p.seed in failed:
                    break
                wrong = off(got[i], torch.zeros_like(got[i]) if want is None else want.flatten())
                if not wrong <= bound[i]:
                    bound[:] = map(max, bound, moved(p, truth))
                if not wrong <= bound[i]:
                    what = "the result" if i == 0 else f"the gradient or value of input {p.inputs[i - 1][0]}"
                    report(p, level, f"{what} is {wrong:.3g} off, {bound[i]:.3g} allowed")
                    failed.add(p.seed)
    return len(failed)


def main():
    worker = sys.argv[1]
    levels = subprocess.run([worker, "levels"], capture_output=True, text=True, check=True).stdout.split()
    if sys.argv[2] == "each":
        count = int(sys.argv[3]) if len(sys.argv) > 3 else 200
        each = sys.argv[4:] or EACH
        if unknown := set(each) - set(EACH):
            sys.exit(f"fuzz_torch: there is no operation {', '.join(sorted(unknown))}; there are {', '.join(EACH)}")
        bad = {(op, dtype): run_batch(worker, levels, range(count), op, dtype) for op in each for dtype in DTYPES}
        print(f"fuzz_torch: {len(each)} operations, {count} programs each in {', '.join(DTYPES)}: "
              f"{sum(bad.values())} failed {[key for key, n in bad.items() if n]}")
        sys.exit(any(bad.values()))
    seconds = float(sys.argv[2])
    if len(sys.argv) > 3:
        sys.exit(run_batch(worker, levels, [int(sys.argv[3])]) > 0)
    begun, count, failed = time.monotonic(), 0, 0
    while time.monotonic() - begun < seconds and failed < 20:
        failed += run_batch(worker, levels, range(count, count + 50))
        count += 50
    print(f"fuzz_torch: {count} programs, {failed} failed; PyTorch {torch.__version__}; {', '.join(levels)}")
    sys.exit(failed > 0)


main()
