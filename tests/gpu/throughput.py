#!/usr/bin/env python3
"""Training steps of tandem and of PyTorch side by side: both at their best.

tandem: captured, and eager, both with autotune. PyTorch: captured (a CUDA graph), torch.compile, and eager,
all with channels_last, bf16 autocast and cudnn.benchmark.

usage: throughput.py --check PROGRAM [--device cuda:0] [--torch PYTHON] MODEL STEM SIZE CLASSES BATCH STEPS

First tandem alone, then again with each way of PyTorch's that has started: what is printed stays, if time ends.
All stay alive; rounds of STEPS steps alternate. Prints each round, then medians, and tandem's ratio to each.
Without PyTorch tandem's figures alone; a way of PyTorch's that does not start is named.
"""
import argparse
import statistics
import subprocess
import sys
import time

ROUNDS = 5


def captured(torch, step, clear):
    """The step as a CUDA graph, warmed up on a stream of its own, as PyTorch's documentation asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(11):
            clear()
            step()
        clear()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def resnet(torch, depth, classes, cifar_stem):
    """torchvision's ResNet-18 or -50, which is not in every environment that has PyTorch."""
    nn = torch.nn

    def conv_bn(inputs, outputs, size, stride=1):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
        )

    class Block(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            outputs = width if depth < 50 else 4 * width
            relu = nn.ReLU(inplace=True)
            if depth < 50:
                parts = [conv_bn(inputs, width, 3, stride), relu, conv_bn(width, width, 3)]
            else:
                parts = [conv_bn(inputs, width, 1), relu, conv_bn(width, width, 3, stride), relu]
                parts.append(conv_bn(width, outputs, 1))
            self.main, self.relu = nn.Sequential(*parts), relu
            same = stride == 1 and inputs == outputs
            self.short = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride)

        def forward(self, x):
            return self.relu(self.main(x) + self.short(x))

    blocks = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]
    layers = [conv_bn(3, 64, 3) if cifar_stem else conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True)]
    layers += [] if cifar_stem else [nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(blocks):
        for i in range(count):
            width = 64 << stage
            layers.append(Block(inputs, width, 2 if stage > 0 and i == 0 else 1))
            inputs = width if depth < 50 else 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def serve(how, model, stem, size, classes, batch):
    """PyTorch's side: answers 'go N' with seconds a step. how: eager, compile or graph."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = resnet(torch, int(model[len("resnet") :]), classes, stem == "cifar")
    print("#", model, sum(p.numel() for p in net.parameters()), "parameters", file=sys.stderr)
    net = net.to(device, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, classes, (batch,), device=device)
    optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)

    run = torch.compile(net) if how == "compile" else net

    def step():
        if how != "graph":  # whose backward writes gradients anew, as there were none when it was recorded
            optim.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(run(x), y)
        loss.backward()
        optim.step()

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    if how == "graph":
        step = captured(torch, step, lambda: optim.zero_grad(set_to_none=True))
    elif how == "compile":
        step()  # compiles
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    print("ready PyTorch", torch.__version__, how, name, flush=True)
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


def compare(peers, steps, batch):
    """Rounds of all, and what comes of them; the peers have been warmed up."""
    for peer in peers:
        peer.times.clear()
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


def main():
    if sys.argv[1:2] == ["--serve"]:
        how, model, stem, size, classes, batch = sys.argv[2:8]
        serve(how, model, stem, int(size), int(classes), int(batch))
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--torch")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--ways", default="graph,compile,eager", help="PyTorch's (%(default)s)")
    parser.add_argument("job", nargs=6, metavar="MODEL STEM SIZE CLASSES BATCH STEPS")
    args = parser.parse_args()
    *job, steps = args.job
    batch, steps = int(job[-1]), int(steps)
    warm = max(5, steps // 2)  # steps for plans, memory, clocks, the recording
    peers = [Peer(name, [args.check, "--device", args.device, part, args.precision, *job])
             for name, part in (("captured", "serve-graph"), ("eager", "serve"))]
    for peer in peers:
        peer.go(warm)
    compare(peers, steps, batch)
    for how in args.ways.split(",") if args.torch else ():
        try:
            peers.append(Peer("PyTorch " + how, [args.torch, __file__, "--serve", how, *job]))
        except (RuntimeError, OSError) as error:
            print("no comparison:", error, flush=True)
            continue
        peers[-1].go(warm)
        compare(peers, steps, batch)
    for peer in peers:
        peer.end()
    return 0


try:
    sys.exit(main())
except (RuntimeError, OSError) as why:
    sys.exit("throughput: %s" % why)
