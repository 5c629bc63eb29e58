"""Golden tokens for tests/inputs/classification.rs, by Hugging Face `tokenizers` 0.23.2 on Python 3, the version of the crate. (0.23.3 gives an odd
token of a truncated pair to the other text.)

Writes, into tests/reference/tokens: lines.txt.gz (10,000 lines with many scripts, emoji, control characters, accents, long
words and unusual whitespace, drawn from a fixed seed); two tokenizers that are trained on them, WordPiece as BERT has it
(vocab.txt and bert.json) and byte-level BPE as GPT-2 has it (gpt2.json); and tokens.json, the hashes of what they
make of the lines.

    pip install tokenizers==0.23.2
    python tests/reference/tokens.py
"""

import gzip
import hashlib
import json
import random
import struct
from pathlib import Path

import tokenizers
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer

FOLDER = Path(__file__).parent / "tokens"
NUM_LINES = 10_000
# Lines per hash.
GROUP = 100
MAX_LENGTH = 24

SYLLABLES = "ba be ci do fu gra hin ing jo ka lem mo ner ob pre qui ra sto ter un vel wi xe yo zu tion ed ly s th e a".split()
RANGES = [
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x58F),
    (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1EFF),
    (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x3040, 0x30FF), (0x3400, 0x34FF),
    (0x4E00, 0x4FFF), (0xAC00, 0xAD00), (0xE000, 0xE010), (0xFB00, 0xFB06), (0xFE00, 0xFE0F), (0xFF00, 0xFF60),
    (0xFFF0, 0xFFFD), (0x10300, 0x10320), (0x1D400, 0x1D4FF), (0x1F300, 0x1F64F), (0x20000, 0x20040), (0xE0020, 0xE007F),
]
# All controls but newline: lines are split there.
CONTROLS = [chr(code) for code in [*range(0, 10), *range(11, 32), *range(0x7F, 0xA0)]]
SPACES = list(" \t\u00a0\u1680\u2003\u2009\u200b\u2028\u202f\u205f\u3000\u0085\ufeff")
EMOJI = ["\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F1EB\U0001F1F7", "\u2764\uFE0F", "\U0001F44D\U0001F3FD"]
PHRASES = ["don't", "I'LL", "we've", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "<|endoftext|>", "x=1,000.50", "a--b", "...", "e\u0301\u0323", "\u00c5ngstr\u00f6m",
           "\u0130stanbul", "stra\u00dfe", "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2", "\ufb01ne", "\u212b"]


def word(draw):
    text = "".join(draw.choice(SYLLABLES) for _ in range(draw.randint(1, 4)))
    return draw.choice([text, text, text, text.capitalize(), text.upper()])


def piece(draw):
    kind = draw.randrange(20)
    if kind < 10:
        return word(draw)
    if kind == 10:
        return str(draw.randrange(10 ** draw.randint(1, 12)))
    if kind == 11:
        return draw.choice(EMOJI)
    if kind == 12:
        return draw.choice(CONTROLS) + word(draw)
    if kind == 13:
        return draw.choice(PHRASES)
    if kind == 14 and draw.randrange(20) == 0:
        return word(draw) * 30
    low, high = draw.choice(RANGES)
    return "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 6)))


def line(draw):
    text = ""
    for _ in range(draw.randint(0, 14)):
        separator = draw.choice(SPACES) * draw.randint(1, 3) if draw.randrange(12) == 0 else " "
        text += piece(draw) + (separator if draw.randrange(10) else draw.choice([",", ".", "!", "", "'"]))
    return text.replace("\n", "")


def hashes(tokenizer, lines, pairs):
    """The hash of each group: of every line its length, its ids and its token types, as little-endian u32."""
    inputs = list(zip(lines, lines[1:] + lines[:1])) if pairs else lines
    encodings = tokenizer.encode_batch(inputs)
    result = []
    for start in range(0, len(lines), GROUP):
        digest = hashlib.sha256()
        for encoding in encodings[start : start + GROUP]:
            numbers = [len(encoding.ids), *encoding.ids, *encoding.type_ids]
            digest.update(struct.pack(f"<{len(numbers)}I", *numbers))
        result.append(digest.hexdigest()[:16])
    return result


def main():
    FOLDER.mkdir(exist_ok=True)
    draw = random.Random(0)
    lines = [line(draw) for _ in range(NUM_LINES)]
    data = "\n".join(lines).encode()
    (FOLDER / "lines.txt.gz").write_bytes(gzip.compress(data, 9, mtime=0))

    bert = BertWordPieceTokenizer(lowercase=True)
    bert.train_from_iterator(lines, vocab_size=1500, min_frequency=2, limit_alphabet=700, show_progress=False)
    bert.save_model(str(FOLDER))
    bert = BertWordPieceTokenizer(str(FOLDER / "vocab.txt"), lowercase=True)
    bert.save(str(FOLDER / "bert.json"), pretty=False)
    cased = BertWordPieceTokenizer(str(FOLDER / "vocab.txt"), lowercase=False)
    gpt2 = ByteLevelBPETokenizer(add_prefix_space=False)
    gpt2.train_from_iterator(lines, vocab_size=900, min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"])
    gpt2.save(str(FOLDER / "gpt2.json"), pretty=False)

    golden = {"tokenizers": tokenizers.__version__, "max_length": MAX_LENGTH}
    for name, tokenizer in [("bert", bert), ("cased", cased), ("gpt2", gpt2)]:
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        for pairs in [False, True]:
            for truncate in [False, True]:
                tokenizer.no_truncation()
                if truncate:
                    tokenizer.enable_truncation(MAX_LENGTH)
                key = name + ("_pairs" if pairs else "") + ("_truncated" if truncate else "")
                golden[key] = hashes(tokenizer, lines, pairs)
    (FOLDER / "tokens.json").write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
