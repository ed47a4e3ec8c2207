"""Fine-tune the language model with LoRA: its own weights stay as they are, two small matrices a
layer are trained.

`peft` puts the matrices into the model; to the trainer it is a model like any other, with few
trainable parameters.

    pip install peft
    python examples/language_model/lora.py [--base runs/language_model/best_model] [--epochs 3]
"""

from __future__ import annotations

import argparse
import inspect
import math
import textwrap
import typing
from functools import partial

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from train import (
    LanguageModelTrainer,
    build_model,
    collate,
    encode,
    read_paragraphs,
    read_sequences,
    train_tokenizer,
)

from loopwright.initializers import load_matching

AdamW = partial(torch.optim.AdamW, lr=5e-3, weight_decay=0.0)


def read_code() -> tuple[list[str], list[str]]:
    """Another kind of text: the sources of a module of the standard library, in pieces; every fifth
    to test with."""
    lines = inspect.getsource(typing).splitlines()
    pieces = ["\n".join(lines[at : at + 6]) for at in range(0, len(lines), 6)]
    return [piece for at, piece in enumerate(pieces) if at % 5], pieces[::5]


def main() -> None:
    parser = argparse.ArgumentParser(description=textwrap.shorten(__doc__, 200))
    parser.add_argument(
        "--base",
        help="weights that examples/language_model/train.py saved; otherwise one epoch here",
    )
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = build_model()
    if options.base:
        print(load_matching(model, options.base))
        tokenizer = train_tokenizer(read_paragraphs()[0])
    else:
        tokenizer, sequences, _ = read_sequences()
        base = LanguageModelTrainer(model, None, None)
        base.train(DataLoader(sequences, 16, shuffle=True, collate_fn=collate), 1)
    before = {name: value.cpu().clone() for name, value in model.state_dict().items()}

    adapter = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    tuned = get_peft_model(model, adapter)
    tuned.print_trainable_parameters()
    train, test = (encode(tokenizer, part) for part in read_code())
    loaders = (
        DataLoader(train, 16, shuffle=True, collate_fn=collate),
        DataLoader(test, 64, collate_fn=collate),
    )
    trainer = LanguageModelTrainer(tuned, AdamW, None)
    print(f"perplexity on code before: {math.exp(trainer.evaluate(loaders[1])['loss']):.1f}")
    history = trainer.train(loaders[0], options.epochs, loaders[1])
    print(f"perplexity on code after:  {math.exp(history['eval_loss'][-1]):.1f}")

    unchanged = tuned.unload().state_dict()
    assert all(torch.equal(unchanged[name].cpu(), value) for name, value in before.items())
    print("the model's own weights are as they were")


if __name__ == "__main__":
    main()
