"""Train on few digits with the lifecycle interface: overridden stages, an average of the weights,
the best model.

python lifecycle.py [--epochs 20]     (stop it with Ctrl-C and start it again: it continues)
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    CosineLrScheduler,
    ModelEmaCallback,
    RecordRunCallback,
    SaveTrainingStateCallback,
    Trainer,
    TrainerPlaceholderValues,
)

FOLDER = Path("runs/lifecycle")


class MixupTrainer(Trainer):
    """Trains on mixtures of two images, and measures the accuracy on plain ones."""

    def calculate_train_batch_loss(self, batch: list[Tensor]) -> dict[str, Any]:
        images, labels = batch
        share = torch.distributions.Beta(0.4, 0.4).sample((len(images), 1)).to(images.device)
        other = torch.randperm(len(images), device=images.device)
        outputs = self.model(share * images + (1 - share) * images[other])
        losses = nn.functional.cross_entropy(outputs, labels, reduction="none") * share[:, 0]
        losses = losses + nn.functional.cross_entropy(outputs, labels[other], reduction="none") * (
            1 - share[:, 0]
        )
        return {"loss": losses.mean(), "model_outputs": outputs, "batch_size": len(images)}

    def eval_epoch_start(self) -> None:
        super().eval_epoch_start()
        self.right: list[Tensor] = []

    def calculate_eval_batch_loss(self, batch: list[Tensor]) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        # from all processes
        self.right.append(self.gather(output["model_outputs"].argmax(1) == batch[1]))
        return output

    def eval_epoch_end(self) -> None:
        self.run_history.update_metric("accuracy", torch.cat(self.right).float().mean().item())

    def training_run_epoch_end(self) -> None:
        accuracy = self.run_history.get_latest_metric("accuracy")
        self.print(f"epoch {self.run_history.current_epoch}: accuracy {accuracy:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images, labels = (
        torch.tensor(digits.data, dtype=torch.float32)[order] / 16,
        torch.tensor(digits.target)[order],
    )
    train_data, test_data = (
        TensorDataset(images[:400], labels[:400]),
        TensorDataset(images[400:], labels[400:]),
    )

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    saving = SaveTrainingStateCallback(FOLDER / "states", save_every_n_epochs=1, max_checkpoints=2)
    average = ModelEmaCallback(
        decay=0.97,
        watch_metric="ema_model_accuracy",
        greater_is_better=True,
        save_path=FOLDER / "best_average",
    )
    trainer = MixupTrainer(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.AdamW(model.parameters(), lr=2e-2),
        callbacks=[average, saving, RecordRunCallback(FOLDER / "record")],
    )
    trainer.train(
        train_data,
        epochs,
        test_data,
        per_device_batch_size=32,
        create_scheduler_fn=partial(
            CosineLrScheduler,
            total_num_epochs=TrainerPlaceholderValues.NUM_EPOCHS,
            num_update_steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
            num_warmup_epochs=1,
            min_lr_ratio=0.3,
        ),
        resume_from=saving.latest,
    )
    figure, axes = plt.subplots(figsize=(6, 4))
    for name, label in (("accuracy", "weights"), ("ema_model_accuracy", "average of the weights")):
        values = [float(value) for value in trainer.run_history.get_metric_values(name)]
        axes.plot(range(1, len(values) + 1), values, label=f"{label}: {max(values):.1%}")
    axes.set(xlabel="epoch", ylabel="accuracy on 1,397 images")
    axes.legend()
    figure.savefig(FOLDER / "accuracy.png")
    trainer.print(f"Best average: accuracy {average.best_metric:.1%} ({FOLDER / 'accuracy.png'})")


if __name__ == "__main__":
    main()
