"""Reads and writes safetensors files by itself; where the safetensors package is installed, it has to
agree."""
import json
import struct

import numpy as np
import torch

NAMES = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8"}


def write(path, tensors, metadata=None):
    header, parts, at = {"__metadata__": {"format": "pt", **(metadata or {})}}, [], 0
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
