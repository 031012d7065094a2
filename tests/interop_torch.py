#!/usr/bin/env python3
"""The other side of test_checkpoint_torch: torchvision's ResNet-18 and safetensors files.

usage: interop_torch.py have                the packages are there
       interop_torch.py write MODEL PROBE   writes a model, an input and the logits for it
       interop_torch.py check MODEL PROBE   loads a model, strictly, and compares its logits

Reads and writes the format by itself; where the safetensors package is installed, it has to agree.
"""
import json
import struct
import sys

import numpy as np
import torch
import torchvision

NAMES = {"float32": "F32", "float64": "F64", "int64": "I64"}


def write(path, tensors):
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor.detach().numpy())
        header[name] = {"dtype": NAMES[str(data.dtype)], "shape": list(tensor.shape),
                        "data_offsets": [at, at + data.nbytes]}
        parts.append(data.tobytes())
        at += data.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def read(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    dtypes = {short: name for name, short in NAMES.items()}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data = content[8 + length + begin:8 + length + end]
            array = np.frombuffer(data, dtypes[entry["dtype"]]).reshape(entry["shape"])
            tensors[name] = torch.from_numpy(array.copy())
    compare_with_package(path, tensors)
    return tensors


def compare_with_package(path, tensors):
    try:
        from safetensors.torch import load_file
    except ImportError:
        return
    theirs = load_file(path)
    assert theirs.keys() == tensors.keys()
    assert all(torch.equal(theirs[name], tensors[name]) for name in tensors)


def make_model():
    model = torchvision.models.resnet18(num_classes=10)
    with torch.no_grad():  # statistics that are not those of a fresh model
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
    return model.eval()


def main():
    torch.set_num_threads(2)
    if sys.argv[1] == "write":
        torch.manual_seed(5)
        model, x = make_model(), torch.randn(2, 3, 64, 64)
        write(sys.argv[2], model.state_dict())
        write(sys.argv[3], {"x": x, "logits": model(x)})
    elif sys.argv[1] == "check":
        model, probe = make_model(), read(sys.argv[3])
        model.load_state_dict(read(sys.argv[2]), strict=True)
        error = (model(probe["x"]) - probe["logits"]).norm() / probe["logits"].norm()
        print(f"relative error of the logits: {error:.3g}")
        sys.exit(0 if error < 1e-5 else 1)


main()
