"""Probabilities of the classes of tests/reference/encoder_hf/bert_classification by transformers, for tests/cli/folders.rs.

Writes tests/reference/folder_scores.json: a vocabulary, texts, and for each the softmax and the sigmoid of the scores.
Made with Python 3.11.7, torch 2.15.0, transformers 5.24.0 on x86-64.

    python tests/reference/folder_scores.py
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{index}" for index in range(91)]
TEXTS = ["w1 w5 w90", "w7", "w3 w3 w80 [MASK] unknown w2"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(HERE / "encoder_hf" / "bert_classification", folder, dirs_exist_ok=True)
        (Path(folder) / "vocab.txt").write_text("".join(token + "\n" for token in VOCAB))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        with torch.no_grad():
            scores = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in TEXTS]).double()
    result = {"vocabulary": VOCAB, "texts": TEXTS, "softmax": scores.softmax(-1).tolist(), "sigmoid": scores.sigmoid().tolist()}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
