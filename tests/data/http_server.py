"""A small web server for tests/data/test_data_download.c.

usage: http_server.py LOG

It listens on a free port of 127.0.0.1 and prints lines "port N" and "md5 NAME HEX" for the archives
that it makes up, then "ready". The first part of a request's path says how it misbehaves:

  whole     not at all
  cut       breaks off in the middle of the first answer
  norange   the same, and knows nothing of ranges
  stall     falls silent in the middle of the first answer
  busy      answers 503 the first time
  changed   sends other bytes of the same length
  missing   404
  endless   sends without end
  lacks     an archive without test_batch.bin
  hostile   an archive with entries that point elsewhere, then the good ones
  fat       an archive with a file that is too long
  nogzip    not an archive at all

Every request is written to LOG as "MODE RANGE". It ends when its standard input does.
"""

import hashlib
import io
import random
import re
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = "cifar-10-batches-bin/"
RECORD = 3073


def batch(number, records=20):
    """A CIFAR-10 file: random pixels, so that the archive does not shrink to nothing."""
    draws = random.Random(number)
    return b"".join(
        bytes([(number + r) % 10]) + draws.getrandbits(8 * 3072).to_bytes(3072, "little")
        for r in range(records)
    )


def files():
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    return {FOLDER + name: batch(i) for i, name in enumerate(names)}


def add(tar, name, data=b"", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    tar.addfile(info, io.BytesIO(data))


def archive(contents, before=lambda tar: None):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
        before(tar)
        add(tar, FOLDER, kind=tarfile.DIRTYPE)
        for name, data in contents.items():
            add(tar, name, data)
        add(tar, FOLDER + "batches.meta.txt", b"airplane\n")
        add(tar, FOLDER + "unknown.sh", b"echo no\n")
    return out.getvalue()


def hostile(tar):
    """Ways out of the folder that an archive may try."""
    add(tar, "../escaped.bin", b"no")
    add(tar, FOLDER + "../../escaped.bin", b"no")
    add(tar, "/tmp/tandem-escaped.bin", b"no")
    add(tar, FOLDER + "data_batch_1.bin", kind=tarfile.SYMTYPE, link="../../escaped.bin")
    add(tar, FOLDER + "data_batch_2.bin", kind=tarfile.LNKTYPE, link="/etc/hostname")
    add(tar, FOLDER + "data_batch_3.bin", kind=tarfile.FIFOTYPE)


def make_archives():
    good = files()
    lacking = {k: v for k, v in good.items() if "test" not in k}
    fat = dict(good)
    fat[FOLDER + "data_batch_5.bin"] = bytes(30730001)
    whole = archive(good)
    return {
        "whole": whole,
        "changed": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        "lacks": archive(lacking),
        "hostile": archive(good, hostile),
        "fat": archive(fat),
        "nogzip": b"<html>Please log in to this network</html>\n" * 100,
    }


ARCHIVES = make_archives()
SEEN = set()
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, code, length, extra=()):
        self.send_response(code)
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        for name, value in extra:
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True

    def body(self, mode):
        """The bytes to send after the headers, which it sends."""
        data = ARCHIVES.get(mode, ARCHIVES["whole"])
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match is None or mode == "norange":
            self.answer(200, len(data))
            return data
        start = int(match.group(1))
        if start >= len(data):
            self.answer(416, 0, [("Content-Range", f"bytes */{len(data)}")])
            return b""
        self.answer(206, len(data) - start,
                    [("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")])
        return data[start:]

    def do_GET(self):
        mode = self.path.split("/")[1]
        with LOCK:
            first = mode not in SEEN
            SEEN.add(mode)
            with open(sys.argv[1], "a") as log:
                log.write(f"{mode} {self.headers.get('Range', 'all')}\n")
        if mode == "missing":
            self.answer(404, 0)
        elif mode == "busy" and first:
            self.answer(503, 0)
        elif mode == "endless":
            self.answer(200, 1 << 40)
            try:
                while True:
                    self.wfile.write(bytes(1 << 20))
            except OSError:
                pass
        elif mode in ("cut", "norange", "stall") and first:
            data = self.body(mode)
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if mode == "stall":
                time.sleep(5)
        else:
            self.wfile.write(self.body(mode))


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("port", server.server_address[1])
    for name, data in ARCHIVES.items():
        print("md5", name, hashlib.md5(data).hexdigest())
    print("md5 data_batch_3.bin", hashlib.md5(batch(2)).hexdigest())
    print("ready", flush=True)
    sys.stdin.read()


main()
