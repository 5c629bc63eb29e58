"""Trains the WordPiece tokenizer of this example, and counts the tokens of its sentences.

    python examples/sentiment/tokenizer.py

Written with Python 3 and tokenizers 0.23.3 (`pip install tokenizers==0.23.3`).

It reads train.tsv only to train, and writes model/vocab.txt, model/tokenizer.json and model/tokenizer_config.json.
Text is lower-cased and split as BERT does it. [PAD] has index 0. Then it prints the longest sentence in tokens,
[CLS] and [SEP] included, and the share of [UNK] among the other tokens.

The trainer breaks ties in an order that changes between runs, so a new run numbers tokens differently and may choose a
few others. A checkpoint needs the vocabulary that it was trained with: keep the files in model/ unless sentences change.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = 1800
MAX_LENGTH = 64


def sentences(split):
    lines = (HERE / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t")[0] for line in lines]


def train():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(sentences("train"), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def save(tokenizer):
    folder = HERE / "model"
    folder.mkdir(exist_ok=True)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": MAX_LENGTH}
    config.update(zip(names, SPECIAL))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def report(tokenizer, split):
    encoded = tokenizer.encode_batch(sentences(split))
    tokens = [token for encoding in encoded for token in encoding.tokens[1:-1]]
    longest = max(len(encoding.tokens) for encoding in encoded)
    unknown = tokens.count("[UNK]") / len(tokens)
    print(f"{split}: {len(encoded)} sentences, longest {longest} tokens, {unknown:.2%} [UNK]")


if __name__ == "__main__":
    tokenizer = train()
    save(tokenizer)
    print(f"{tokenizer.get_vocab_size()} tokens in the vocabulary")
    for split in ("train", "dev"):
        report(tokenizer, split)
