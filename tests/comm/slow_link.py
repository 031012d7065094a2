"""A bad link between two network namespaces: slow_link.py NAMESPACE NAMESPACE DELAY LOSS FAULT

Two TUN devices named "slow" (10.78.0.1 and 10.78.0.2), and this program between them, which keeps each
packet for DELAY seconds and loses a part of them. It says "up", and ends with its parent. The file FAULT
may say more at any time: "cut" (nothing passes), "to0" or "to1" (nothing passes to that host: half-open),
"reset" (each packet of a connection is answered by resets to both ends). Kernels have netem for some of
this, but not all of them.
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


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def reset(source, destination, ports, sequence):
    """An IPv4 packet that resets a TCP connection (RFC 793: its number is the next one expected)."""
    tcp = ports + struct.pack("!IIBBHHH", sequence, 0, 5 << 4, 4, 0, 0, 0)
    sum_ = checksum(source + destination + struct.pack("!HH", 6, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", sum_) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 5 | 4 << 4, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + source + destination
    return ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp


def resets(packet):
    """To the sender and to the receiver of a packet; none if it is not TCP."""
    if packet[0] >> 4 != 4 or packet[9] != 6:
        return None
    source, destination, at = packet[12:16], packet[16:20], (packet[0] & 15) * 4
    sequence, acknowledged = struct.unpack("!II", packet[at + 4 : at + 12])
    back = reset(destination, source, packet[at + 2 : at + 4] + packet[at : at + 2], acknowledged)
    return back, reset(source, destination, packet[at : at + 4], sequence)


def read_fault(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def send(end, packet):
    try:
        os.write(end, packet)
    except OSError:
        pass  # the device's queue is full, or it is down: lost


def forward(ends, delay, loss, path):
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting, number, parent, chance = [], 0, os.getppid(), random.Random(1)
    fault, looked = "", 0
    while os.getppid() == parent:
        if time.monotonic() > looked + 0.05:
            fault, looked = read_fault(path), time.monotonic()
        pause = max(0, min(0.1, waiting[0][0] - time.monotonic())) if waiting else 0.1
        for end in select.select(ends, [], [], pause)[0]:
            try:
                packet = os.read(end, 65536)
            except BlockingIOError:
                continue
            both = resets(packet) if fault == "reset" else None
            if both is not None:
                send(end, both[0])
                send(other[end], both[1])
            elif fault not in ("cut", "to0" if other[end] == ends[0] else "to1") and chance.random() >= loss:
                number += 1
                heapq.heappush(waiting, (time.monotonic() + delay, number, other[end], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(waiting)
            send(end, packet)


ends = [open_tun(sys.argv[1], "10.78.0.1"), open_tun(sys.argv[2], "10.78.0.2")]
print("up", flush=True)
forward(ends, float(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
