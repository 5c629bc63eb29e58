"""Tokens of small folders for tests/inputs/classification.rs, by `AutoTokenizer` of Hugging Face's transformers.

Writes tests/reference/tokenizer_folders.json: for each folder its files, and the ids and segments of texts. The folders
differ in what stands beside the vocabulary. The segments are those that a BERT gets: all 0 if the tokenizer makes no
`token_type_ids`.

    pip install transformers==5.24.0 tokenizers==0.23.2
    python tests/reference/tokenizer_folders.py
"""

import json
import tempfile
from pathlib import Path

import tokenizers
import transformers
from transformers import AutoTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<unk>", "the", "cafe", "café", "Café", "caf", "##e",
         "##é", "Ca", "##fe", "host", "Host", "was", "good", "no", "北", "京", "北京", "##京", "x", "##ed", "!", "[", "]"]
BERT = {"model_type": "bert"}
TEXTS = [["The Café was good!"], ["the cafe [MASK] HOST"], ["北京 host"], ["x[NEW]x the [NEW] host"], ["[new] <s>no</s>"]]
PAIRS = [["the host", "good cafe"], ["no", ""]]
LONG = [["the host was good no the cafe"], ["the host was good", "no cafe"]]


def tokenizer_json(lower=True, added=()):
    """A WordPiece tokenizer as BERT has it."""
    cls, sep = "[CLS]", "[SEP]"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    token = lambda name: {"id": VOCAB.index(name), "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}
    special = lambda name, kind: {"SpecialToken": {"id": name, "type_id": kind}}
    text = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [token(name) for name in names] + list(added),
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": lower},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special(cls, 0), text("A", 0), special(sep, 0)],
            "pair": [special(cls, 0), text("A", 0), special(sep, 0), text("B", 1), special(sep, 1)],
            "special_tokens": {name: {"id": name, "ids": [VOCAB.index(name)], "tokens": [name]} for name in {cls, sep}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {name: index for index, name in enumerate(VOCAB)}}}


def new(**flags):
    return {"content": "[NEW]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False,
            **flags}


V = len(VOCAB)
WITH_NEW = tokenizer_json(added=[{"id": V, **new()}])
# Name, files, texts, and how long texts may be.
CASES = [
    ("a vocabulary alone", {"vocab.txt": VOCAB, "config.json": BERT}, TEXTS + PAIRS, None),
    ("a cased vocabulary", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": False}}, TEXTS, None),
    ("accents stay", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "strip_accents": False}}, TEXTS, None),
    ("Chinese words", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizerFast", "tokenize_chinese_chars": False}}, TEXTS, None),
    ("BertTokenizer's letters win over tokenizer.json", {"tokenizer.json": tokenizer_json(), "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": False}}, TEXTS, None),
    ("the other way round", {"tokenizer.json": tokenizer_json(lower=False), "tokenizer_config.json": {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True}}, TEXTS, None),
    ("the class of the model is BertTokenizer, which lowers letters", {"tokenizer.json": tokenizer_json(lower=False), "config.json": BERT}, TEXTS, None),
    ("a class that takes tokenizer.json as it is", {"tokenizer.json": tokenizer_json(lower=False), "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, "config.json": BERT}, TEXTS, None),
    ("the class is in config.json", {"tokenizer.json": tokenizer_json(lower=False), "config.json": {**BERT, "tokenizer_class": "PreTrainedTokenizerFast"}}, TEXTS, None),
    ("added_tokens.json", {"vocab.txt": VOCAB, "added_tokens.json": {"[NEW]": V}, "config.json": BERT}, TEXTS, None),
    ("added_tokens.json, one of them special", {"vocab.txt": VOCAB, "added_tokens.json": {"[NEW]": V, "<s>no": V + 1}, "special_tokens_map.json": {"additional_special_tokens": ["[NEW]"]}, "config.json": BERT}, TEXTS, None),
    ("added_tokens.json beside tokenizer.json", {"tokenizer.json": tokenizer_json(), "added_tokens.json": {"[NEW]": V}, "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}, "config.json": BERT}, TEXTS, None),
    ("added tokens of tokenizer.json, BertTokenizer", {"tokenizer.json": WITH_NEW, "config.json": BERT}, TEXTS, None),
    ("added_tokens_decoder", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": {str(V): new(normalized=True)}}}, TEXTS, None),
    ("added_tokens_decoder, whole words only", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": {str(V): new(single_word=True, lstrip=True, rstrip=True)}}}, TEXTS, None),
    ("added_tokens_decoder wins over the other two files", {"vocab.txt": VOCAB, "added_tokens.json": {"[new]": V}, "special_tokens_map.json": {"cls_token": "<s>"}, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": {str(V): new()}}}, TEXTS, None),
    ("added_tokens_decoder beside tokenizer.json", {"tokenizer.json": WITH_NEW, "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {str(V): new(normalized=True)}}}, TEXTS, None),
    ("other special tokens", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "cls_token": "<s>", "sep_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}, "unk_token": "<unk>"}}, TEXTS + PAIRS, None),
    ("other special tokens, from their map", {"vocab.txt": VOCAB, "special_tokens_map.json": {"cls_token": "<s>", "sep_token": {"content": "</s>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}}, "config.json": BERT}, TEXTS + PAIRS, None),
    ("more special tokens", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "additional_special_tokens": ["[NEW]"]}}, TEXTS, None),
    ("a special token of its own name", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "host_token": "[NEW]"}}, TEXTS, None),
    ("special tokens are split", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "split_special_tokens": True}}, TEXTS, None),
    ("DistilBertTokenizer makes no segments", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "DistilBertTokenizer"}, "config.json": BERT}, TEXTS + PAIRS, None),
    ("no segments are asked for", {"tokenizer.json": tokenizer_json(), "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]}}, PAIRS, None),
    ("segments are asked for", {"tokenizer.json": tokenizer_json(), "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, "config.json": BERT}, PAIRS, None),
    ("the start is cut", {"vocab.txt": VOCAB, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "truncation_side": "left"}}, LONG, 7),
    ("tokenizer.json cuts the start", {"tokenizer.json": {**tokenizer_json(), "truncation": {"direction": "Left", "max_length": 512, "strategy": "LongestFirst", "stride": 0}}, "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, "config.json": BERT}, LONG, 7),
    ("the end is cut", {"vocab.txt": VOCAB, "config.json": BERT}, LONG, 7),
]


def main():
    assert tokenizers.__version__ == "0.23.2", "0.23.3 cuts pairs otherwise"
    result = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__, "folders": []}
    for name, contents, texts, max_length in CASES:
        files = {file: "".join(line + "\n" for line in value) if isinstance(value, list) else json.dumps(value, ensure_ascii=False)
                 for file, value in contents.items()}
        with tempfile.TemporaryDirectory() as folder:
            for file, text in files.items():
                (Path(folder) / file).write_text(text)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        cut = dict(truncation=True, max_length=max_length) if max_length else {}
        # In batches, as an empty second text is left out of a single call.
        encoded = [tokenizer(*[[part] for part in text], **cut) for text in texts]
        ids = [one["input_ids"][0] for one in encoded]
        has_segments = "token_type_ids" in tokenizer.model_input_names
        segments = [one["token_type_ids"][0] if has_segments else [0] * len(one["input_ids"][0]) for one in encoded]
        print(name, type(tokenizer).__name__, [tokenizer.convert_ids_to_tokens(row) for row in ids])
        result["folders"].append({"name": name, "files": files, "texts": texts, "max_length": max_length, "ids": ids,
                                  "segments": segments})
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")


if __name__ == "__main__":
    main()
