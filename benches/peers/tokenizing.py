"""Throughput of tokenizing sentences: Lockstep beside Hugging Face `tokenizers` in Python, in turns.

    pip install tokenizers==0.23.2
    cargo build --release --bench tokenize        # prints the path of the program
    python benches/peers/tokenizing.py PROGRAM [LINES]

LINES (default 67349, as many as SST-2 has) sentences of 2 to 17 words, drawn from a fixed seed, are encoded with the
WordPiece tokenizer of tests/reference/tokens. Both sides use all cores. Prints the best of five rounds, in lines per second.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "tests/reference/tokens/bert.json"
SYLLABLES = "ba be ci do fu gra hin ing jo ka lem mo ner ob pre qui ra sto ter un vel wi xe yo zu".split()


def main():
    program = sys.argv[1]
    num_lines = int(sys.argv[2]) if len(sys.argv) > 2 else 67349
    draw = random.Random(0)
    word = lambda: "".join(draw.choice(SYLLABLES) for _ in range(draw.randint(1, 4)))
    lines = [" ".join(word() for _ in range(draw.randint(2, 17))) for _ in range(num_lines)]
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    ours, theirs, tokens = [], [], set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.tsv"
        path.write_text("sentence\n" + "\n".join(lines) + "\n")
        for _ in range(5):
            start = time.perf_counter()
            encodings = tokenizer.encode_batch_fast(lines)
            theirs.append(time.perf_counter() - start)
            tokens.add(sum(len(encoding.ids) for encoding in encodings))
            output = subprocess.run([program, path, TOKENIZER], check=True, capture_output=True, text=True).stdout
            seconds, count = output.split()
            ours.append(float(seconds))
            tokens.add(int(count))
    assert len(tokens) == 1, f"different numbers of tokens: {tokens}"
    for name, seconds in [("lockstep", min(ours)), ("tokenizers", min(theirs))]:
        print(f"{name:12} {num_lines / seconds:10.0f} lines/s  {seconds:.3f} s for {num_lines} lines, {max(tokens)} tokens")


if __name__ == "__main__":
    main()
