"""Asks --report-live's server: as a browser does, and as nobody should.

usage: live_client.py page PORT FILE SECONDS   waits for the page, and writes it to FILE
       live_client.py hostile PORT             prints the outcome of each bad request
       live_client.py silent PORT              connects, sends half a request, and waits for the end of the server
"""
import socket
import sys
import time

BAD = {
    "another path": b"GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a query": b"GET /?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a POST": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
    "another site's name": b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "a name that begins alike": b"GET / HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a byte 0": b"GET / HTTP/1.1\r\nHost: localhost\x00\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "no end": b"GET / HTTP/1.1\r\nX: " + 9000 * b"a",
    "nothing": b"",
}


def ask(port, request, close=False):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
        s.sendall(request)
        if close:
            s.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := s.recv(1 << 16):
                answer += part
        except ConnectionResetError:  # the server has closed with bytes unread
            pass
    return answer


def main():
    what, port = sys.argv[1], int(sys.argv[2])
    if what == "page":
        end = time.monotonic() + float(sys.argv[4])
        answer = b""
        while time.monotonic() < end and not answer.startswith(b"HTTP/1.1 200"):
            time.sleep(0.2)
            try:
                answer = ask(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port)
            except ConnectionRefusedError:
                pass
        head, _, body = answer.partition(b"\r\n\r\n")
        print(head.decode(), flush=True)
        assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n", len(body)
        open(sys.argv[3], "wb").write(body)
    elif what == "hostile":
        for name, request in BAD.items():
            print(f"{name}: {ask(port, request, close=True).split(bytes([13]))[0].decode() or 'closed'}")
    else:
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"GET / HT")
        print("sent", flush=True)
        s.settimeout(120)
        print(s.recv(100))


main()
