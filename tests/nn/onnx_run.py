#!/usr/bin/env python3
"""Runs ONNX files in onnxruntime and compares with tandem's results.

usage: onnx_run.py FOLDER TOLERANCE     each NAME.onnx in it with NAME.safetensors: its inputs and "output"
       onnx_run.py --check              whether onnx, onnxruntime and numpy are installed
"""
import glob
import json
import os
import struct
import sys

import numpy as np
import onnx
import onnxruntime

DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "U8": np.uint8}


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    length, = struct.unpack("<Q", data[:8])
    header, data = json.loads(data[8:8 + length]), data[8 + length:]
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data[slice(*e["data_offsets"])], DTYPES[e["dtype"]]).reshape(e["shape"])
            for name, e in header.items()}


def difference(path):
    """The relative error of the result, or a text that says what is wrong."""
    onnx.checker.check_model(path, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tensors = read(path[:-len(".onnx")] + ".safetensors")
    y, = session.run(["output"], {x.name: tensors[x.name] for x in session.get_inputs()})
    want = tensors["output"]
    if y.dtype != want.dtype or y.shape != want.shape:
        return f"{y.dtype} {y.shape} for {want.dtype} {want.shape}"
    if want.size == 0:
        return 0.0
    y, want = y.astype(np.float64), want.astype(np.float64)
    if not np.array_equal(np.isnan(y), np.isnan(want)):
        return "NaN at other places"
    size = np.linalg.norm(np.nan_to_num(want))
    return float(np.linalg.norm(np.nan_to_num(y - want)) / (size if size > 0 else 1))


def main():
    if sys.argv[1] == "--check":
        return
    folder, tolerance = sys.argv[1], float(sys.argv[2])
    bad = worst = count = 0
    for path in sorted(glob.glob(os.path.join(folder, "*.onnx"))):
        try:
            error = difference(path)
        except Exception as what:  # of any kind: the file is at fault
            error = str(what).splitlines()[0]
        count += 1
        if isinstance(error, str) or not error <= tolerance:
            print(f"FAIL  {os.path.basename(path)}: {error}")
            bad += 1
        else:
            worst = max(worst, error)
    print(f"onnx_run: {count} files, {bad} differ; the largest relative error of the others is {worst:.2g}")
    sys.exit(bad > 0 or count == 0)


main()
