#!/usr/bin/env python3
"""Training steps of tandem and of PyTorch (eager, bf16 autocast, channels_last), side by side.

usage: throughput.py --check PROGRAM [--device cuda:0] [--torch PYTHON] MODEL STEM SIZE CLASSES BATCH STEPS

Both stay alive; rounds of STEPS steps alternate. Prints each round, then medians and the ratio. Without
PyTorch tandem's figures alone.
"""
import argparse
import statistics
import subprocess
import sys
import time

ROUNDS = 5


def serve(model, stem, size, classes, batch):
    """PyTorch's side: answers 'go N' with seconds a step."""
    import torch
    import torch.nn.functional as F
    import torchvision

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = getattr(torchvision.models, model)(num_classes=classes)
    if stem == "cifar":
        net.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
        net.maxpool = torch.nn.Identity()
    net = net.to(device, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, classes, (batch,), device=device)
    optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def step():
        optim.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optim.step()

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    print("ready PyTorch", torch.__version__, name, flush=True)
    for line in sys.stdin:
        if not line.startswith("go "):
            break
        steps = int(line[3:])
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        print("%.6f" % ((time.perf_counter() - start) / steps), flush=True)


class Peer:
    def __init__(self, name, command):
        self.name, self.times = name, []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self.process.stdout.readline().strip()
        if not self.facts.startswith("ready"):
            raise RuntimeError("%s does not start" % name)
        print(self.facts[6:], flush=True)

    def go(self, steps):
        self.process.stdin.write("go %d\n" % steps)
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("%s has died" % self.name)
        return float(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    if sys.argv[1:2] == ["--serve"]:
        model, stem, size, classes, batch = sys.argv[2:7]
        serve(model, stem, int(size), int(classes), int(batch))
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--torch")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("job", nargs=6, metavar="MODEL STEM SIZE CLASSES BATCH STEPS")
    args = parser.parse_args()
    *job, steps = args.job
    batch, steps = int(job[-1]), int(steps)
    peers = [Peer(name, [args.check, "--device", args.device, part, args.precision, *job])
             for name, part in (("captured", "serve-graph"), ("eager", "serve"))]
    if args.torch:
        try:
            peers.append(Peer("PyTorch", [args.torch, __file__, "--serve", *job]))
        except (RuntimeError, OSError) as error:
            print("no comparison:", error, flush=True)
    for peer in peers:  # warming up: plans, memory, clocks, the recording
        peer.go(max(5, steps // 2))
    for i in range(ROUNDS):
        for peer in peers if i % 2 == 0 else peers[::-1]:
            peer.times.append(peer.go(steps))
        print("  ".join("%s %.3f ms" % (p.name, p.times[-1] * 1e3) for p in peers), flush=True)
    medians = [statistics.median(p.times) for p in peers]
    text = "tandem, captured %.3f ms, %.0f images/s" % (medians[0] * 1e3, batch / medians[0])
    for peer, median in list(zip(peers, medians))[1:]:
        ratios = [b / a for a, b in zip(peers[0].times, peer.times)]
        text += "; %s %.3f ms: %.2f times as fast" % (peer.name, median * 1e3, statistics.median(ratios))
    print(text, flush=True)
    for peer in peers:
        peer.end()
    return 0


try:
    sys.exit(main())
except (RuntimeError, OSError) as why:
    sys.exit("throughput: %s" % why)
