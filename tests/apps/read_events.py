"""Reads a TensorBoard event file by its format's definition and checks it against the CSV.

usage: read_events.py DIR     (one events.out.tfevents.* and metrics.csv)
"""
import csv
import glob
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        assert length_crc == masked(data[at : at + 8]), "length's checksum at %d" % at
        body = data[at + 12 : at + 12 + length]
        (body_crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert body_crc == masked(body), "record's checksum at %d" % at
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            assert kind == 5, "wire type %d" % kind
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        yield key >> 3, value


def main():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    folder = sys.argv[1]
    (path,) = glob.glob(folder + "/events.out.tfevents.*")
    events = [list(fields(body)) for body in records(open(path, "rb").read())]
    first = dict(events[0])
    assert first[3] == b"brain.Event:2", first
    logged = {}
    for event in events[1:]:
        event = dict(event)
        assert event[1] > 1.6e9, "wall time %r" % event[1]
        for _, value in fields(event[5]):
            value = dict(fields(value))
            logged[event[2], value[1].decode()] = value[2]
    wanted = {}
    for row in csv.DictReader(open(folder + "/metrics.csv")):
        for name, text in row.items():
            if name != "step" and text:
                wanted[int(row["step"]), name] = float(text)
    assert len(wanted) > 10 and wanted.keys() == logged.keys(), (len(wanted), len(logged))
    for key, value in wanted.items():  # the CSV has 9 digits, the event file a float32
        assert abs(logged[key] - value) <= 1e-7 * abs(value), (key, value, logged[key])
    print("%d scalars in %d events" % (len(logged), len(events)))


main()
