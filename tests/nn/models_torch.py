#!/usr/bin/env python3
"""The other side of test_nn_models and long_nn_models: torchvision's models.

usage: models_torch.py have                          torch and torchvision are there
       models_torch.py probe MODEL SIDE BATCH PATH   writes PATH.model.safetensors (weights drawn here)
                                                     and PATH.probe.safetensors: pictures, labels;
                                                     in f64 logits in evaluation and training, and
                                                     gradients; how far torch's f32 is from them
       models_torch.py predict MODEL PICTURE PATH    writes weights to PATH, and prints what predict does
       models_torch.py golden FILE                   writes tests/golden/models.json anew

torchvision has no BoTNet: the one here is written down from the paper as directly as possible.
"""
import copy
import json
import os
import sys
import zlib

import torch
import torchvision
from PIL import Image
from torch import nn
from torch.nn import functional

sys.path.append(os.path.join(os.path.dirname(__file__), "../help"))
from safetensors_file import write

CLASSES = 10
SIDE = 64  # of the pictures behind the committed numbers


class Attention(nn.Module):
    """Self-attention with relative positions: entry (query x,y; key i,j) one by one."""

    def __init__(self, side, heads=4, size=128):
        super().__init__()
        self.side, self.heads, self.size = side, heads, size
        self.to_qk = nn.Conv2d(512, 2 * heads * size, 1, bias=False)
        self.to_v = nn.Conv2d(512, heads * size, 1, bias=False)
        self.pos_emb = nn.Module()
        self.pos_emb.rel_height = nn.Parameter(torch.randn(2 * side - 1, size) * size**-0.5)
        self.pos_emb.rel_width = nn.Parameter(torch.randn(2 * side - 1, size) * size**-0.5)

    def forward(self, x):
        n, s = x.shape[0], self.side
        q, k = self.to_qk(x).chunk(2, dim=1)
        shape = (n, self.heads, self.size, s * s)
        q, k, v = (t.reshape(shape).transpose(2, 3) for t in (q, k, self.to_v(x)))
        q = q * self.size**-0.5
        place = torch.arange(s * s)
        row, column = place // s, place % s
        distance = (self.pos_emb.rel_height[row[None] - row[:, None] + s - 1]
                    + self.pos_emb.rel_width[column[None] - column[:, None] + s - 1])
        scores = q @ k.transpose(2, 3) + torch.einsum("nhpd,pkd->nhpk", q, distance)
        return (scores.softmax(-1) @ v).transpose(2, 3).reshape(n, -1, s, s)


class BottleneckTransformer(nn.Module):
    def __init__(self, inputs, side):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, 512, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(512)
        self.attention = Attention(side)
        self.bn2 = nn.BatchNorm2d(512)
        self.conv3 = nn.Conv2d(512, 2048, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(2048)
        if inputs != 2048:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, 2048, 1, bias=False),
                                            nn.BatchNorm2d(2048), nn.ReLU())

    def forward(self, x):
        h = functional.relu(self.bn1(self.conv1(x)))
        h = functional.relu(self.bn2(self.attention(h)))
        shortcut = self.downsample(x) if hasattr(self, "downsample") else x
        return functional.relu(self.bn3(self.conv3(h)) + shortcut)


def botnet50(side, num_classes=1000):
    class BoTNet(torchvision.models.ResNet):
        def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
            if planes < 512:
                return super()._make_layer(block, planes, blocks, stride, dilate)
            self.inplanes = 2048
            places = (side + 15) // 16
            return nn.Sequential(*(BottleneckTransformer(1024 if i == 0 else 2048, places)
                                   for i in range(blocks)))

    model = BoTNet(torchvision.models.resnet.Bottleneck, [3, 4, 6, 3], num_classes)
    for block in model.layer4:
        nn.init.zeros_(block.bn3.weight)
    return model


def make(name, side, classes=CLASSES):
    if name == "botnet50":
        return botnet50(side, classes)
    model = getattr(torchvision.models, name)(num_classes=classes)
    for module in model.modules():  # what is dropped is drawn differently here and there
        if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
    return model


NAMES = """resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d
wide_resnet50_2 wide_resnet101_2 densenet121 densenet161 densenet169 densenet201 botnet50
efficientnet_b0 regnet_x_16gf regnet_y_16gf regnet_y_32gf""".split()
NUMBERS = ["resnext50_32x4d", "densenet121", "botnet50", "efficientnet_b0", "regnet_x_16gf"]


def state_of(model):
    return {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}


def norms_of(model):
    return [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


def train_step(model, x, y):
    model.train().zero_grad()
    logits = model(x)
    functional.cross_entropy(logits, y).backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters()}


def distance(a, b):
    """Relative L2 of two lists of tensors."""
    error = sum(float(((x.double() - y.double())**2).sum()) for x, y in zip(a, b))
    return (error / sum(float((y.double()**2).sum()) for y in b))**0.5


def results_of(model, x, y):
    with torch.no_grad():
        evaluated = model.eval()(x)
    trained, gradients = train_step(model, x, y)
    return {"eval": evaluated, "train": trained,
            **{"grad." + key: value for key, value in gradients.items()}}


def own_noise(model, x, y, exact, draws=4):
    """How far torch's f32 is from its f64: in logits of evaluation and training and in gradients.
    Rounding grows in a random net: in a BoTNet's attention by a hundred; and a ReLU whose input
    rounds to the other side of 0 changes gradients by more than rounding could. That is chance, so
    the worst is taken of some draws: pictures that differ in the last place."""
    noise = [0.0] * 3
    for draw in range(draws):
        single = results_of(copy.deepcopy(model), x * (1 + draw * 1e-7 * torch.rand_like(x)), y)
        for i, begin in enumerate(("eval", "train", "grad.")):
            keys = [key for key in exact if key.startswith(begin)]
            far = distance([single[key] for key in keys], [exact[key] for key in keys])
            noise[i] = max(noise[i], far)
    return noise


def probe(name, side, batch, path):
    """Normalisations get weights and statistics that are not those of a fresh model."""
    torch.manual_seed(3)
    model = make(name, side)
    with torch.no_grad():
        for norm in norms_of(model):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0, 0.1)
            norm.momentum = 1.0
        model.train()(torch.randn(batch + 2, 3, side, side))
    for norm in norms_of(model):
        norm.momentum = 0.1
    write(path + ".model.safetensors", state_of(model), {"model.arch": name})
    x, y = torch.randn(batch, 3, side, side), torch.arange(batch) % CLASSES
    exact = results_of(copy.deepcopy(model).double(), x.double(), y)
    noise = torch.tensor(own_noise(model, x, y, exact))
    write(path + ".probe.safetensors", {"x": x, "y": y, "noise": noise, **exact}, {})


def predict(name, picture, path):
    torch.manual_seed(3)
    model = make(name, 224).eval()
    write(path, state_of(model))
    t = torchvision.transforms
    chain = t.Compose([t.Resize(256), t.CenterCrop(224), t.ToTensor(),
                       t.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    with torch.no_grad():
        found = model(chain(Image.open(picture).convert("RGB"))[None]).softmax(1)[0]
    for probability, number in zip(*found.topk(5)):
        print(f"  {100 * float(probability):6.2f} %  class {int(number)}")


def formula(count, stream):
    """In [-1, 1), the same in C: a multiplicative hash of the number."""
    i = torch.arange(count, dtype=torch.int64)
    hashed = ((i * 2 + 1 + stream * 1000003) * 2654435761) % 2**32
    return (hashed >> 8).double() / 2**23 - 1


def golden_row(name):
    torch.manual_seed(0)
    model = make(name, SIDE)
    crc = 0
    for tensor in state_of(model).values():
        crc = zlib.crc32(tensor.detach().numpy().tobytes(), crc)
    row = {"name": name, "crc32": f"{crc:08x}",
           "parameters": sum(p.numel() for p in make(name, 224, 1000).parameters())}
    return {**row, **numbers(model)} if name in NUMBERS else row


def numbers(model):
    model, batch = model.double(), 4
    with torch.no_grad():
        for i, norm in enumerate(norms_of(model)):
            norm.weight.copy_(1 + 0.25 * formula(norm.num_features, 2 * i))
            norm.bias.copy_(0.1 * formula(norm.num_features, 2 * i + 1))
    x = formula(batch * 3 * SIDE * SIDE, 77).reshape(batch, 3, SIDE, SIDE)
    with torch.no_grad():
        evaluated = model.eval()(x)
    trained, gradients = train_step(model, x, torch.arange(batch) % CLASSES)
    norm = sum(float((g**2).sum()) for g in gradients.values())**0.5
    return {"eval": evaluated.flatten().tolist(), "train": trained.flatten().tolist(),
            "gradient": norm}


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "probe":
        probe(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    elif sys.argv[1] == "predict":
        predict(*sys.argv[2:5])
    elif sys.argv[1] == "golden":
        rows = [json.dumps(golden_row(name)) for name in NAMES]
        with open(sys.argv[2], "w") as out:
            out.write('{"models": [\n' + ",\n".join(rows) + "\n]}\n")


main()
