"""Writes tests/tokenizer/: a small vocabulary of BPE in both forms of file, and what tiktoken makes of some texts.

usage: make_tokenizer.py TEXT FOLDER     TEXT is what the vocabulary is learned from; needs PyPI's tiktoken and regex

A line of expected.txt is a text in hexadecimal digits and its tokens; after "special", special tokens are tokens. Bytes
that are no UTF-8 are tokens of single bytes, and the runs between them are encoded as texts of their own.
"""
import base64
import collections
import json
import os
import random
import sys

import regex
import tiktoken

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
MERGES, LETTERS = 250, 100000
FIXED = ["a", "the", " the", "the the  the", "it's we'll I've they're I'd I'm can't 'S 'LL", "x" * 300, " " * 40 + "x",
         " \n\n\t x \r\n", "\u00a0a\u3000b\u0085c\u2003\u2003d\u180ee", "12345678 3.14 1,000 \u0661\u0662 \u216b \u00bd",
         "Gr\u00fc\u00dfe, \u041f\u0440\u0438\u0432\u0435\u0442 \u4e16\u754c \U0001f600\U0001f469\u200d\U0001f4bb e\u0301",
         "<|endoftext|>", "a<|endoftext|><|endoftext|> b <|endoftext", "!!! ... -- $%&/()=?", "snake_case camelCase\n"]


def learn(words):
    """The merges of words (bytes: how often): the most frequent pair first, of equal ones the smallest."""
    words = {tuple(bytes([b]) for b in word): count for word, count in words.items()}
    merges = []
    for _ in range(MERGES):
        pairs = collections.Counter()
        for parts, count in words.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        joined = {}
        for parts, count in words.items():
            new, i = [], 0
            while i < len(parts):
                both = parts[i:i + 2] == best
                new.append(parts[i] + parts[i + 1] if both else parts[i])
                i += 2 if both else 1
            joined[tuple(new)] = joined.get(tuple(new), 0) + count
        words = joined
    return merges


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()[:LETTERS]
    folder, rng = sys.argv[2], random.Random(7)
    seen = [b for b in range(256) if 0x20 < b < 0x7F or b > 0xA0 and b != 0xAD]
    order = seen + [b for b in range(256) if b not in seen]
    char = {b: chr(b) if b in seen else chr(256 + order.index(b) - len(seen)) for b in order}
    show = lambda token: "".join(char[b] for b in token)
    merges = learn(collections.Counter(word.encode() for word in regex.findall(PATTERN, text)))
    tokens = [bytes([b]) for b in order] + [a + b for a, b in merges]
    ranks = {token: i for i, token in enumerate(tokens)}
    end = {"<|endoftext|>": len(tokens)}
    encoding = tiktoken.Encoding(name="small", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=end)
    with open(os.path.join(folder, "small.tiktoken"), "wb") as file:
        file.writelines(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    with open(os.path.join(folder, "vocab.json"), "w", encoding="utf-8") as file:
        json.dump({**{show(token): rank for token, rank in ranks.items()}, **end}, file)
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n" + "".join(f"{show(a)} {show(b)}\n" for a, b in merges))

    def encode(data):
        result, run = [], ""
        for c in data.decode("utf-8", "surrogateescape") + "\udc80":
            if "\udc80" <= c <= "\udcff":
                result += encoding.encode_ordinary(run) + [ranks[bytes([ord(c) - 0xDC00])]]
                run = ""
            else:
                run += c
        return result[:-1]

    texts = [t.encode() for t in FIXED] + [bytes(range(256)), b"\xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80 \xe2\x82 \xe2\x82\xac"]
    for _ in range(12):
        begin = rng.randrange(len(text))
        part = bytearray(text[begin:begin + rng.randrange(1, 90)].encode() + rng.choice(FIXED).encode()[:40])
        if rng.random() < 0.5:
            for _ in range(5):
                part[rng.randrange(len(part))] = rng.randrange(256)
        texts.append(bytes(part))
    with open(os.path.join(folder, "expected.txt"), "w", encoding="ascii") as file:
        for data in texts:
            file.write(f"{data.hex()} {' '.join(map(str, encode(data)))}\n")
        for data in texts[11:13]:
            file.write(f"special {data.hex()} {' '.join(map(str, encoding.encode(data.decode(), allowed_special='all')))}\n")


if __name__ == "__main__":
    main()
