"""The examples that train and fine-tune a language model with a loss of its own."""

from __future__ import annotations

import re
from pathlib import Path

from .forked import run_forked

EXAMPLES = Path(__file__).parent.parent / "examples" / "language_model"


def number(pattern: str, printed: str) -> float:
    return float(re.search(pattern, printed)[1])


def test_a_model_with_its_own_loss_learns_and_is_fine_tuned_from_what_was_saved(
    tmp_path: Path,
) -> None:
    printed = run_forked(
        EXAMPLES / "train.py", tmp_path, "--epochs", "1", "--limit", "400", "--save-dir", "out"
    )
    untrained, frequencies = (
        number(r"untrained: (\d+)", printed),
        number(r"frequencies alone: (\d+)", printed),
    )
    trained = number(r"epoch 1: test perplexity ([\d.]+)", printed)
    assert frequencies < untrained
    assert trained < 0.6 * untrained

    printed = run_forked(
        EXAMPLES / "lora.py", tmp_path, "--epochs", "1", "--base", "out/best_model"
    )
    assert "Loaded 29 of 29" in printed
    assert number(r"after: +([\d.]+)", printed) < 0.9 * number(r"before: +([\d.]+)", printed)
    assert "the model's own weights are as they were" in printed
