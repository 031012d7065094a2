#!/usr/bin/env bash
# tokenize: token files of texts and back, what it prints, what it refuses, and that a failure leaves the old file.
. "$(dirname "$0")/../help/tap.sh"
app=$apps/tokenize
small=$PWD/tests/tokenizer
json=(--vocab "$small/vocab.json" --merges "$small/merges.txt")
printf "the first text: it's \303\274ber" >"$work/a.txt"
printf 'and another<|endoftext|>\n\377\000' >"$work/b.txt"
cat "$work/a.txt" "$work/b.txt" >"$work/both"
word() { od -An -t d4 -j $((4 * $2)) -N 4 "$1" | tr -d ' '; }

works 'bytes' "$app" --out "$work/bytes.bin" "$work/a.txt" "$work/b.txt"
says 'what it has done' "bytes.bin: 53 bytes of text, 53 tokens of 2 bytes, 1.00 bytes of text a token; [0-9]+ of 256 different tokens"
[ "$(word "$work/bytes.bin" 0) $(word "$work/bytes.bin" 1) $(word "$work/bytes.bin" 2) $(word "$work/bytes.bin" 3)" = '20240520 1 53 256' ]
tap $? "llm.c's header, with the vocabulary"
"$app" --decode "$work/bytes.bin" >"$work/back"
same 'and back' "$work/both" "$work/back"
works 'bytes without a header' "$app" --plain --out "$work/plain.bin" "$work/a.txt"
[ "$(stat -c %s "$work/plain.bin")" = $((2 * $(stat -c %s "$work/a.txt"))) ]
tap $? 'two bytes each'
works 'are text again' "$app" --decode --out "$work/back" "$work/plain.bin"
same 'the same' "$work/a.txt" "$work/back"

fails 'no file to write' 64 'name the file to write: --out' "$app" "$work/a.txt"
fails 'no text' 64 'at least one file' "$app" --out "$work/x.bin"
fails 'merges alone' 64 'merges without --vocab' "$app" --out "$work/x.bin" --merges "$small/merges.txt" "$work/a.txt"
cp "$work/plain.bin" "$work/kept.bin"
: >"$work/empty.txt"
fails 'an empty text' 1 'empty.txt: the text is empty' "$app" --out "$work/kept.bin" "$work/a.txt" "$work/empty.txt"
fails 'a text that is not there' 1 'nowhere: cannot be opened' "$app" --out "$work/kept.bin" "$work/a.txt" "$work/nowhere"
same 'the old file stays' "$work/plain.bin" "$work/kept.bin"
[ -z "$(find "$work" -name '*.tmp.*')" ]
tap $? 'and nothing is left beside it'
fails 'no folder for it' 1 'none/x.bin. .of unknown size..*create the folder first' "$app" --out "$work/none/x.bin" "$work/a.txt"
fails 'end of text, without such a token' 1 'has no <|endoftext|>' "$app" --end-of-text --out "$work/x.bin" "$work/a.txt"
head -c 1030 "$work/bytes.bin" >"$work/cut.bin"
fails 'a token file that is cut off' 1 'cut.bin: the header says 53 tokens' "$app" --decode "$work/cut.bin"
[ -w /dev/full ] && {
    "$app" --decode "$work/bytes.bin" >/dev/full 2>"$work/err"
    tap $(($? != 1)) 'a full disk' "$work/err"
}
if no_terminal; then :; else
    head -c 3000000 /dev/zero >"$work/large.txt"
    $terminal nothing 1 "$app" --out "$work/large.bin" "$work/large.txt" >"$work/out"
    tap $? 'on a terminal' "$work/out"
    says 'what it has done, below the progress' 'large.bin: 3000000 bytes of text'
fi

cp "$work/a.txt" "$work/tiny.txt"
fails 'a download over another text' 1 'tiny.txt is another text than tinyshakespeare' "$app" --download "$work/tiny.txt"
same 'which stays' "$work/a.txt" "$work/tiny.txt"

# BPE: what tests/tokenizer/ has.
if "$app" --out "$work/x.bin" --vocab "$small/small.tiktoken" "$work/a.txt" 2>&1 | grep -q 'has no BPE'; then
    echo '# skipped: built without PCRE2'
    done_testing
fi
works 'ranks' "$app" --out "$work/ranks.bin" --vocab "$small/small.tiktoken" "$work/a.txt" "$work/b.txt"
works 'vocab.json and merges.txt' "$app" --out "$work/json.bin" "${json[@]}" "$work/a.txt" "$work/b.txt"
same 'are one vocabulary' "$work/ranks.bin" "$work/json.bin"
"$app" --decode --vocab "$small/small.tiktoken" "$work/json.bin" >"$work/back"
same 'and back' "$work/both" "$work/back"
works 'special tokens, one more after each text' \
    "$app" --special --end-of-text --out "$work/special.bin" "${json[@]}" "$work/a.txt" "$work/b.txt"
[ "$(od -An -t u2 -v -w2 -j 1024 "$work/special.bin" | grep -c 506)" = 3 ]
tap $? 'are there' "$work/out"
fails 'another vocabulary' 1 'token [0-9]+ \(counted from 0\) is [0-9]+, which this vocabulary does not' \
    "$app" --decode "$work/ranks.bin"
fails 'a vocabulary that is none' 1 "a.txt:1: the number is none of a token" \
    "$app" --out "$work/x.bin" --vocab "$work/a.txt" "$work/b.txt"
works 'pieces of one letter' "$app" --pattern . --out "$work/x.bin" "${json[@]}" "$work/a.txt"
done_testing
