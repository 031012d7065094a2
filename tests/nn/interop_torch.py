#!/usr/bin/env python3
"""The other side of test_checkpoint_torch: torchvision's ResNet-18 and safetensors files.

usage: interop_torch.py have                the packages are there
       interop_torch.py write MODEL PROBE   writes a model, an input and the logits for it
       interop_torch.py check MODEL PROBE   loads a model, strictly, and compares its logits
"""
import os
import sys

import torch
import torchvision

sys.path.append(os.path.join(os.path.dirname(__file__), "../help"))
from safetensors_file import read, write


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
