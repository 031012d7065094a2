#!/usr/bin/env python3
"""PyTorch's side of test_dist_shard_torch: trains the same blocks, from the same seeds, on the same rows, and writes
rank 0's losses, one a line: 20 of DistributedDataParallel and 20 of fully_shard, over gloo.

usage: shard_torch.py have | train RANKS BLOCKS WIDTH ROWS STEPS FILE
"""
import os
import socket
import sys


def train(net, way, width, rows, rank, steps):
    import torch
    from torch import nn

    if way == "fully_shard":
        from torch.distributed.fsdp import fully_shard
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for block in net:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    else:
        net = nn.parallel.DistributedDataParallel(net)
    optim = torch.optim.Adam(net.parameters(), lr=1e-3)
    torch.manual_seed(2 + rank)
    x = torch.randn(rows, width)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(net(x), x)
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    return losses


def worker(rank, ranks, blocks, width, rows, steps, path, port):
    import torch
    from torch import nn

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    losses = []
    for way in ("ddp", "fully_shard"):
        torch.manual_seed(1)
        net = nn.Sequential(*[nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                            nn.Linear(4 * width, width)) for _ in range(blocks)])
        losses += train(net, way, width, rows, rank, steps)
    if rank == 0:
        with open(path, "w", encoding="ascii") as out:
            out.writelines(f"{loss!r}\n" for loss in losses)
    torch.distributed.destroy_process_group()


def main():
    if sys.argv[1] == "have":
        from torch.distributed.fsdp import fully_shard  # noqa: F401 (newer than some installed PyTorch)
        return
    import torch.multiprocessing as mp

    ranks, blocks, width, rows, steps = (int(a) for a in sys.argv[2:7])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (ranks, blocks, width, rows, steps, sys.argv[7], port), nprocs=ranks)


if __name__ == "__main__":
    main()
