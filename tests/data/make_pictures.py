#!/usr/bin/env python3
"""Pictures for test_data_pictures, and what PIL and torchvision make of them.

usage: make_pictures.py have
       make_pictures.py make tests/pictures       draws them and writes expected.safetensors anew
       make_pictures.py decode FOLDER OUT         decodes every JPEG below a folder, and resizes it
"""
import os
import sys

import numpy as np
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import functional

sys.path.append(os.path.join(os.path.dirname(__file__), "../help"))
from safetensors_file import write


def draw(width, height, seed):
    """Smooth colours, edges and some noise."""
    random = np.random.RandomState(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 120 * np.sin(x / (3 + 2 * c) + y / (7 - 2 * c) + seed) for c in range(3)]
    rgb = np.stack(waves, axis=2) + random.normal(0, 8, (height, width, 3))
    rgb[height // 3:height // 2, width // 4:width // 2] = [250, 10, 30]
    return Image.fromarray(np.clip(rgb, 0, 255).astype(np.uint8))


def save_all(folder):
    rgb, alpha = draw(37, 29, 1), draw(37, 29, 2).convert("L")
    grey = rgb.convert("L")
    rgba, grey_alpha = rgb.copy(), grey.copy()
    rgba.putalpha(alpha)
    grey_alpha.putalpha(alpha)
    pictures = {
        "rgb.png": (rgb, {}), "grey.png": (grey, {}), "rgba.png": (rgba, {}),
        "grey_alpha.png": (grey_alpha, {}), "palette.png": (rgb.quantize(40), {}),
        "rgb_stored.png": (rgb, {"compress_level": 0}), "grey_stored.png": (grey, {"compress_level": 0}), "palette_60.png": (rgb.quantize(60), {}),
        "444.jpg": (rgb, {"quality": 90, "subsampling": 0}),
        "422.jpg": (rgb, {"quality": 90, "subsampling": 1}),
        "420.jpg": (rgb, {"quality": 90, "subsampling": 2}),
        "progressive.jpg": (rgb, {"quality": 90, "progressive": True}),
        "grey.jpg": (grey, {"quality": 90}), "cmyk.jpg": (rgb.convert("CMYK"), {"quality": 95}),
        "large.jpg": (draw(200, 150, 3), {"quality": 80}),
        "png_in_disguise.jpg": (rgb, {"format": "PNG"}),
    }
    for name, (picture, options) in pictures.items():
        picture.save(os.path.join(folder, name), **options)
    again(folder, rgb, grey, rgb.quantize(40))
    return list(pictures)


def again(folder, rgb, grey, palette):
    """The same pixels in files of other kinds; the GIF has a second frame."""
    rgb.save(os.path.join(folder, "rgb.bmp"))
    rgb.save(os.path.join(folder, "rgb.tga"), compression="tga_rle")
    rgb.save(os.path.join(folder, "rgb.ppm"))
    grey.save(os.path.join(folder, "grey.pgm"))
    second = palette.point(lambda value: (value + 7) % 40)
    palette.save(os.path.join(folder, "palette.gif"), save_all=True, append_images=[second], duration=100)


def bytes_of(picture):
    return torch.from_numpy(np.array(picture.convert("RGB")))


def resized(picture):
    """Boxes of the crop, then the size of the result."""
    results = {}
    for box, size in [((0, 0, 37, 29), (224, 224)), ((3, 5, 30, 20), (16, 16)),
                      ((0, 0, 37, 29), (7, 11)), ((11, 2, 1, 27), (9, 9)),
                      ((0, 0, 37, 29), (37, 10)), ((5, 5, 20, 20), (20, 20)),
                      ((0, 0, 37, 29), (1, 1)), ((1, 0, 36, 29), (35, 28))]:
        left, top, width, height = box
        part = functional.resized_crop(picture, top, left, height, width, list(size[::-1]),
                                       transforms.InterpolationMode.BILINEAR)
        key = "resize/%d,%d,%d,%d,%d,%d" % (box + size)
        results[key] = bytes_of(part)
    return results


def evaluated(picture, name):
    results = {}
    for resize, size in [(20, 16), (32, 29), (24, 24), (40, 33)]:
        chain = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(size)])
        results[f"evaluate/{name},{resize},{size}"] = bytes_of(chain(picture))
    return results


def jittered(picture):
    """The kind's number in td_jitter_kind, the factor times 1000."""
    change = [functional.adjust_brightness, functional.adjust_contrast,
              functional.adjust_saturation, functional.adjust_hue]
    factors = [[0.0, 0.6, 1.0, 1.7]] * 3 + [[-0.5, -0.1, 0.0, 0.25, 0.5]]
    return {f"jitter/{kind},{round(factor * 1000)}": bytes_of(change[kind](picture, factor))
            for kind in range(4) for factor in factors[kind]}


def crops():
    """torchvision's own crop parameters. Whole numbers come from the same kind of draws as the
    others, so that a list of numbers in [0, 1) decides everything."""
    own, results = torch.randint, {}
    torch.randint = lambda low, high, size: torch.tensor([int(torch.rand(1).item() * high)])
    for width, height in [(500, 375), (375, 500), (64, 64), (1000, 30), (30, 1000), (3, 2)]:
        picture, rows = torch.zeros(3, height, width), []
        for seed in range(40):
            torch.manual_seed(seed)
            top, left, h, w = transforms.RandomResizedCrop.get_params(
                picture, [0.08, 1.0], [3.0 / 4.0, 4.0 / 3.0])
            rows.append([left, top, w, h])
        results[f"crops/{width},{height}"] = torch.tensor(rows)
    torch.randint = own
    return results


def make(folder):
    expected = {}
    for name in save_all(folder):
        picture = Image.open(os.path.join(folder, name))
        expected["decode/" + name] = bytes_of(picture)
        if name in ("rgb.png", "large.jpg"):
            expected.update(evaluated(picture.convert("RGB"), name))
    rgb = Image.open(os.path.join(folder, "rgb.png")).convert("RGB")
    expected.update({**resized(rgb), **jittered(rgb), **crops()})
    write(os.path.join(folder, "expected.safetensors"), expected)


def decode(folder, out):
    results = {}
    for path, _, files in sorted(os.walk(folder)):
        for name in sorted(files):
            if name.lower().endswith((".jpg", ".jpeg")):
                picture = Image.open(os.path.join(path, name)).convert("RGB")
                key = os.path.relpath(os.path.join(path, name), folder)
                results["decode/" + key] = bytes_of(picture)
                chain = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
                results["evaluate/" + key] = bytes_of(chain(picture))
    write(out, results)


if sys.argv[1] == "make":
    make(sys.argv[2])
elif sys.argv[1] == "decode":
    decode(sys.argv[2], sys.argv[3])
