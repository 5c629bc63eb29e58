"""Randomly initialised Hugging Face BERTs and DistilBERTs as folders, their logits, and five steps of fine-tuning.

    python encoder_hf.py       # writes encoder_hf/ and encoder_hf.json, which encoders.rs reads

Made with Python 3.11.7, torch 2.15.0, transformers 5.23.0 on x86-64. Biases and scales, which start as zeros and ones, are
made random too. The second example is padded. Fine-tuning is in f64, without dropout: AdamW, without decay for
parameters of rank below 2, a linear warm-up and decay of the rate. Epsilon is larger than usual: keys' biases have no
gradient but rounding errors, which AdamW would otherwise make a full step of.
"""

import pathlib
import platform
import shutil
import tempfile

import numpy as np
import torch
import transformers

import drawn

HERE = pathlib.Path(__file__).parent
BATCH, POSITIONS, VOCABULARY, CLASSES = 4, 10, 96, 3
LENGTHS = [10, 6, 1, 9]
RATES = [2.0**-8, 2.0**-7, 3 * 2.0**-9, 2.0**-8, 2.0**-9]
ADAMW = dict(beta1=0.9, beta2=0.95, epsilon=2.0**-14, weight_decay=0.1)

MODELS = {
    "bert": (transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=12, num_labels=CLASSES),
        transformers.BertForSequenceClassification, transformers.BertForMaskedLM),
    "distilbert": (transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=4, hidden_dim=32, max_position_embeddings=12,
        num_labels=CLASSES),
        transformers.DistilBertForSequenceClassification, transformers.DistilBertForMaskedLM),
}


def inputs(name):
    mask = torch.tensor([[int(place < length) for place in range(POSITIONS)] for length in LENGTHS])
    given = {"input_ids": torch.tensor(drawn.integers("tokens", VOCABULARY, BATCH, POSITIONS)), "attention_mask": mask}
    if name == "bert":
        given["token_type_ids"] = torch.tensor(drawn.integers("segments", 2, BATCH, POSITIONS))
    return given


def make(kind, config):
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.1 * torch.randn_like(param))
    return model


def save(model, folder):
    target = HERE / "encoder_hf" / folder
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        model.save_pretrained(temporary)
        for file in ["config.json", "model.safetensors"]:
            shutil.copy(pathlib.Path(temporary) / file, target / file)


def fine_tune(model, given, labels):
    model = model.double()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1]},
              {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["epsilon"],
                                  weight_decay=ADAMW["weight_decay"])
    losses = []
    for rate in RATES:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = model(**given, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(drawn.short(loss.item()))
    params = {name: drawn.digest(name, param.detach()) for name, param in model.named_parameters()}
    return {"losses": losses, "params": params}


def main():
    labels = torch.tensor(drawn.integers("labels", CLASSES, BATCH))
    models = {}
    for name, (config, classifier, masked) in MODELS.items():
        # The same attention everywhere, in the dtype of the model.
        config._attn_implementation = "eager"
        given = inputs(name)
        models[name] = {}
        for head, kind in [("classification", classifier), ("masked_lm", masked)]:
            model = make(kind, config)
            save(model, f"{name}_{head}")
            with torch.no_grad():
                logits = model.double()(**given).logits
            models[name][head] = drawn.digest("logits", logits.reshape(-1, logits.shape[-1]))
        models[name]["steps"] = fine_tune(make(classifier, config), given, labels)
    drawn.write(__file__, {
        "made_with": {"python": platform.python_version(), "torch": torch.__version__,
                      "transformers": transformers.__version__, "numpy": np.__version__},
        "dims": [BATCH, POSITIONS],
        "lengths": LENGTHS,
        "classes": CLASSES,
        "rates": RATES,
        "optimizer": {"name": "adamw", **ADAMW},
        "models": models,
    })


main()
