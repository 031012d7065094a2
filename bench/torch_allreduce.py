#!/usr/bin/env python3
"""All-reduce by PyTorch's gloo backend, for bench/allreduce.py: the sizes, counts and lines of
bench/allreduce.h. usage: torch_allreduce.py RANK SIZE FOLDER (an empty one, where the ranks meet)"""
import statistics
import sys
import time

import torch
import torch.distributed as dist

rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://%s/store" % folder, rank=rank, world_size=size)
bytes_now = 1 << 10
while bytes_now <= 64 << 20:
    tensor = torch.zeros(bytes_now // 4)
    calls = max(6, min(300, (128 << 20) // bytes_now))
    times = []
    for i in range(-5, calls):
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        if i >= 0:
            times.append((time.perf_counter() - begin) * 1e6)
    if rank == 0:
        print("%d %.2f" % (bytes_now, statistics.median(times)), flush=True)
    bytes_now *= 4
dist.destroy_process_group()
