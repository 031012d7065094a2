"""tokenize against tiktoken and Hugging Face's tokenizers: the same tokens, and the text back.

usage: tokenizer_check.py TOKENIZE RANKS FOLDER

RANKS is GPT-2's file of ranks; FOLDER is for files. vocab.json and merges.txt are made of the ranks. Texts: white space,
contractions, numbers and every assigned character, bytes that are no UTF-8, one long word, special tokens; vocabularies:
GPT-2's, and random ones whose tokens cannot all be reached.
"""
import array
import base64
import json
import random
import subprocess
import sys
import unicodedata

import tiktoken
import tokenizers

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
GPT4 = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"""
        r"""\s+(?!\S)|\s""")
program, ranks_file, folder = sys.argv[1:4]
rng = random.Random(5)
failures = cases = 0

# A character that another version of Unicode calls a letter is cut elsewhere: those that all versions know alike.
known = unicodedata if float(unicodedata.unidata_version[:4]) <= 14 else unicodedata.ucd_3_2_0
used = [chr(c) for c in range(0x110000)
        if known.category(chr(c)) not in ("Cn", "Co", "Cs") and known.category(chr(c)) == unicodedata.category(chr(c))]
BLANKS = [" ", "  ", "\n", "\n\n", "\t", " \n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u0085", "   \n  "]
WORDS = ["'s", "'t", "'ll", "'ve", "'re", "'d", "'m", "'S", "'", "<|endoftext|>", "<|endoftext"]


def mixed(count):
    def one():
        kind = rng.random()
        if kind < 0.3:
            return rng.choice(BLANKS)
        if kind < 0.5:
            return rng.choice(WORDS)
        if kind < 0.7:
            return "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABC") for _ in range(rng.randint(1, 12)))
        if kind < 0.8:
            return str(rng.randint(0, 10 ** rng.randint(1, 9)))
        return "".join(rng.choice(used) for _ in range(rng.randint(1, 6)))
    return "".join(one() for _ in range(count))


def tokenize(text, *options):
    """Our tokens of a text in bytes; fails if they do not decode to it."""
    source, target, back = folder + "/text", folder + "/text.bin", folder + "/back"
    with open(source, "wb") as file:
        file.write(text)
    subprocess.run([program, source, "--out", target, *options], check=True, stdout=subprocess.DEVNULL)
    files = [o for o in options if o not in ("--special", "--end-of-text")]
    subprocess.run([program, target, "--out", back, "--decode", *files], check=True)
    with open(back, "rb") as file:
        assert file.read() == text, "the text does not come back"
    with open(target, "rb") as file:
        data = file.read()
    tokens = array.array("H" if int.from_bytes(data[:4], "little") == 20240520 else "I", data[1024:])
    assert len(tokens) == int.from_bytes(data[8:12], "little")
    return tokens.tolist()


def compare(name, ours, theirs):
    global failures, cases
    cases += 1
    if ours != theirs:
        failures += 1
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        print(f"FAIL  {name}: token {at} of {len(theirs)}: {ours[at - 3:at + 5]} and not {theirs[at - 3:at + 5]}")
    else:
        print(f"ok    {name}: {len(theirs)} tokens")


def by_runs(encode, of_byte, data):
    """What bytes become that are not all UTF-8: the runs that are, as texts of their own; other bytes as single tokens."""
    tokens, run = [], []
    for c in data.decode("utf-8", "surrogateescape"):
        if 0xDC80 <= ord(c) <= 0xDCFF:
            tokens += encode("".join(run)) + [of_byte[ord(c) - 0xDC00]]
            run = []
        else:
            run.append(c)
    return tokens + encode("".join(run))


def visible():
    """The characters that stand for bytes in vocab.json and merges.txt."""
    seen = [b for b in range(256) if 0x20 < b < 0x7F or b > 0xA0 and b != 0xAD]
    others = [b for b in range(256) if b not in seen]
    return {**{b: chr(b) for b in seen}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def parts_of(token, ranks):
    """The two parts that a token is joined of, by lower ranks alone."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
        assert ranks.get(parts[best] + parts[best + 1], 1 << 30) < ranks[token]
        parts[best:best + 2] = [parts[best] + parts[best + 1]]
    return parts


def write_ranks(path, ranks):
    with open(path, "wb") as file:
        for token, rank in ranks.items():
            file.write(base64.b64encode(token) + b" %d\n" % rank)


def write_merges(vocab, merges):
    with open(folder + "/vocab.json", "w", encoding="utf-8") as file:
        json.dump(vocab, file, ensure_ascii=rng.random() < 0.5)
    with open(folder + "/merges.txt", "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return ["--vocab", folder + "/vocab.json", "--merges", folder + "/merges.txt"]


def hugging_face(vocab, merges):
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return lambda text: model.encode(text).ids


def check_texts(name, encode, of_byte, options, size):
    for i in range(3):
        text = mixed(size)
        compare(f"{name}, mix {i}", tokenize(text.encode(), *options), encode(text))
    for i in range(3):
        data = bytearray(mixed(size // 2).encode() + rng.randbytes(size))
        for _ in range(len(data) // 50):
            data[rng.randrange(len(data))] = rng.randrange(256)
        compare(f"{name}, no UTF-8 {i}", tokenize(bytes(data), *options), by_runs(encode, of_byte, bytes(data)))


def check_gpt2(ranks):
    end = {"<|endoftext|>": len(ranks)}
    theirs = tiktoken.Encoding(name="gpt2", pat_str=GPT2, mergeable_ranks=ranks, special_tokens=end)
    of_byte = [ranks[bytes([b])] for b in range(256)]
    options = ["--vocab", ranks_file]
    for name, text in [("every character between letters", "".join("a" + c + "b" for c in used)),
                       ("every character in random order", "".join(rng.sample(used, len(used)))),
                       ("a megabyte of one letter", "a" * 1000000), ("blanks", " " * 9000 + "x"),
                       ("a megabyte of two letters", "ab" * 500000)]:
        compare(name, tokenize(text.encode(), *options), theirs.encode_ordinary(text))
    check_texts("GPT-2", theirs.encode_ordinary, of_byte, options, 40000)
    text = mixed(20000)
    compare("special tokens", tokenize(text.encode(), *options, "--special"), theirs.encode(text, allowed_special="all"))
    gpt4 = tiktoken.Encoding(name="gpt4", pat_str=GPT4, mergeable_ranks=ranks, special_tokens=end)
    check_texts("GPT-4's pattern", gpt4.encode_ordinary, of_byte, [*options, "--pattern", GPT4], 20000)
    char = visible()
    vocab = {"".join(char[b] for b in token): rank for token, rank in ranks.items()}
    merges = [tuple("".join(char[b] for b in part) for part in parts_of(token, ranks)) for token in ranks if len(token) > 1]
    options = write_merges({**vocab, **end}, merges)
    check_texts("vocab.json", theirs.encode_ordinary, of_byte, options, 40000)
    compare("vocab.json, special", tokenize(text.encode(), *options, "--special"), theirs.encode(text, allowed_special="all"))
    check_texts("Hugging Face", hugging_face(vocab, merges), of_byte, options, 20000)


def check_random(i):
    """A vocabulary by chance: any tokens have any ranks, so that low ranks need parts of higher ones."""
    char, order = visible(), list(range(700))
    rng.shuffle(order)
    tokens = [bytes([b]) for b in range(256)]
    merges = []
    while len(tokens) < 650:
        a, b = rng.choice(tokens[90:130] + tokens[256:]), rng.choice(tokens[90:130] + tokens[256:])
        if a + b not in tokens and len(a + b) < 12:
            tokens.append(a + b)
            merges.append((a, b))
    ranks = dict(zip(tokens, order))
    of_byte = [ranks[bytes([b])] for b in range(256)]
    write_ranks(folder + "/random.tiktoken", ranks)
    theirs = tiktoken.Encoding(name="random", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})
    check_texts(f"random ranks {i}", theirs.encode_ordinary, of_byte, ["--vocab", folder + "/random.tiktoken"], 5000)
    rng.shuffle(merges)
    text = lambda token: "".join(char[b] for b in token)
    vocab, pairs = {text(t): r for t, r in ranks.items()}, [(text(a), text(b)) for a, b in merges]
    check_texts(f"random merges {i}", hugging_face(vocab, pairs), of_byte, write_merges(vocab, pairs), 5000)


def main():
    with open(ranks_file, "rb") as file:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file)}
    check_gpt2(ranks)
    for i in range(4):
        check_random(i)
    print(f"{cases - failures} of {cases} are equal")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
