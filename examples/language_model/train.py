"""Train a small language model on the Python language reference, which every interpreter brings
along.

The model is a `transformers` causal LM from a random configuration and computes its own loss, so
the trainer gets `loss_fn=None`. Sequences differ in length: every update is the mean over all
tokens of its batches, and so is the perplexity that is reported.

    python examples/language_model/train.py [--epochs 6] [--save-dir runs/language_model] [--limit
    500]
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics
from collections import Counter

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from loopwright.interfaces.simple import Trainer

VOCABULARY, LENGTH, IGNORED = 1024, 64, -100


class LanguageModelTrainer(Trainer):
    """Weighs every token alike, whatever batch it is in: the model's mean loss becomes a sum and a
    count."""

    def _prepare_batch(self, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        inputs, _ = super()._prepare_batch(batch)
        # the first token is not predicted
        return inputs, (inputs["labels"][:, 1:] != IGNORED).sum()

    def _compute_loss(self, outputs: GPT2LMHeadModel, targets: Tensor) -> tuple[Tensor, Tensor]:
        return outputs.loss * targets, targets


def read_paragraphs() -> tuple[list[str], list[str]]:
    """Paragraphs to train on, and those of every tenth topic to test with."""
    train, test = [], []
    for number, (_, text) in enumerate(sorted(pydoc_data.topics.topics.items())):
        (test if number % 10 == 5 else train).extend(
            part.strip() for part in text.split("\n\n") if part.strip()
        )
    return train, test


def train_tokenizer(paragraphs: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": ["<end>"], "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(paragraphs, trainers.BpeTrainer(vocab_size=VOCABULARY, **options))
    return tokenizer


def encode(tokenizer: Tokenizer, paragraphs: list[str]) -> list[Tensor]:
    """One sequence a paragraph, ended by <end> (0) and cut to the model's length."""
    return [torch.tensor([0, *code.ids, 0][:LENGTH]) for code in tokenizer.encode_batch(paragraphs)]


def read_sequences() -> tuple[Tokenizer, list[Tensor], list[Tensor]]:
    paragraphs = read_paragraphs()
    tokenizer = train_tokenizer(paragraphs[0])
    return tokenizer, encode(tokenizer, paragraphs[0]), encode(tokenizer, paragraphs[1])


def build_model() -> GPT2LMHeadModel:
    sizes = {
        "vocab_size": VOCABULARY,
        "n_positions": LENGTH,
        "n_embd": 96,
        "n_layer": 2,
        "n_head": 4,
    }
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    model.loss_type = "ForCausalLM"  # what it takes anyway, without a warning
    return model


def collate(sequences: list[Tensor]) -> dict[str, Tensor]:
    labels = pad_sequence(sequences, batch_first=True, padding_value=IGNORED)
    return {
        "input_ids": labels.clamp(min=0),
        "attention_mask": (labels != IGNORED).long(),
        "labels": labels,
    }


def unigram_perplexity(train: list[Tensor], test: list[Tensor]) -> float:
    """What knowing only how often each token occurs gives."""
    counts = Counter(token for sequence in train for token in sequence.tolist())
    total = sum(counts.values()) + VOCABULARY
    logs = [
        math.log(total / (counts[token] + 1))
        for sequence in test
        for token in sequence[1:].tolist()
    ]
    return math.exp(sum(logs) / len(logs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--save-dir")
    parser.add_argument("--limit", type=int, help="train on so many paragraphs only")
    options = parser.parse_args()

    torch.manual_seed(0)
    tokenizer, train, test = read_sequences()
    train = train[: options.limit]
    print(
        f"{len(train)} paragraphs with {sum(map(len, train))} tokens to train on, {len(test)} to "
        "test with"
    )
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    settings = {"training": {"gradient_accumulation_steps": 2, "max_grad_norm": 1.0}}
    trainer = LanguageModelTrainer(model, optimizer, None, settings)
    loaders = (
        DataLoader(train, 16, shuffle=True, collate_fn=collate),
        DataLoader(test, 64, collate_fn=collate),
    )

    def report(trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        print(f"epoch {epoch + 1}: test perplexity {math.exp(metrics['eval_loss']):.1f}")

    untrained = math.exp(trainer.evaluate(loaders[1])["loss"])
    print(
        f"untrained: {untrained:.0f}, token frequencies alone: "
        f"{unigram_perplexity(train, test):.0f}"
    )
    trainer.train(
        loaders[0], options.epochs, loaders[1], save_dir=options.save_dir, callbacks=[report]
    )

    start = torch.tensor([[0, *tokenizer.encode("The statement").ids]], device=trainer.device)
    written = model.generate(
        start, attention_mask=torch.ones_like(start), max_new_tokens=40, do_sample=True, top_k=20
    )
    print(f"\n{tokenizer.decode(written[0, 1:].tolist())}")


if __name__ == "__main__":
    main()
