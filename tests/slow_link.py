"""A slow and lossy link between two network namespaces: slow_link.py NAMESPACE NAMESPACE DELAY LOSS

Two TUN devices named "slow" (10.78.0.1 and 10.78.0.2), and this program between them, which keeps each
packet for DELAY seconds and loses a part of them. It says "up", and ends with its parent. Kernels have
netem for this, but not all of them.
"""
import ctypes, fcntl, heapq, os, random, select, struct, subprocess, sys, time

CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0001, 0x1000


def open_tun(namespace, address):
    libc = ctypes.CDLL(None, use_errno=True)
    ns = os.open("/var/run/netns/" + namespace, os.O_RDONLY)
    if libc.setns(ns, CLONE_NEWNET) != 0:
        sys.exit("setns: " + os.strerror(ctypes.get_errno()))
    os.close(ns)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", b"slow", IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "addr", "add", address + "/24", "dev", "slow"], check=True)
    subprocess.run(["ip", "link", "set", "slow", "up"], check=True)
    return tun


def forward(ends, delay, loss):
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting, number, parent, chance = [], 0, os.getppid(), random.Random(1)
    while os.getppid() == parent:
        pause = max(0, min(0.1, waiting[0][0] - time.monotonic())) if waiting else 0.1
        for end in select.select(ends, [], [], pause)[0]:
            try:
                packet = os.read(end, 65536)
            except BlockingIOError:
                continue
            if chance.random() >= loss:
                number += 1
                heapq.heappush(waiting, (time.monotonic() + delay, number, other[end], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(waiting)
            try:
                os.write(end, packet)
            except OSError:
                pass  # the device's queue is full, or it is down: lost


ends = [open_tun(sys.argv[1], "10.78.0.1"), open_tun(sys.argv[2], "10.78.0.2")]
print("up", flush=True)
forward(ends, float(sys.argv[3]), float(sys.argv[4]))
