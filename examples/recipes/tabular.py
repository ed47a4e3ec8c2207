"""Tabular data: tell benign from malignant tumours by 30 measurements, with metrics of
torchmetrics.

python tabular.py [--epochs 60]     (needs loopwright[demo,metrics])
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from loopwright import Trainer, seed_everything
from loopwright.callbacks import BestModel, EarlyStopping, TorchMetrics


class Standardise(nn.Module):
    """Scales the columns by those of the training data; in the model, so that it travels with the
    weights."""

    def __init__(self, columns: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", columns.mean(0))
        self.register_buffer("std", columns.std(0))

    def forward(self, columns: Tensor) -> Tensor:
        return (columns - self.mean) / self.std


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    epochs = parser.parse_args().epochs
    seed_everything(0)
    table = load_breast_cancer()
    order = torch.randperm(len(table.target))
    columns = torch.tensor(table.data, dtype=torch.float32)[order]
    is_benign = torch.tensor(table.target, dtype=torch.float32)[order].unsqueeze(1)
    train_data, eval_data, test_data = (
        (columns[part], is_benign[part])
        for part in (slice(0, 369), slice(369, 469), slice(469, None))
    )

    model = nn.Sequential(
        Standardise(train_data[0]), nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1)
    )
    metrics = TorchMetrics(
        {"accuracy": BinaryAccuracy(), "auroc": BinaryAUROC()},
        prepare=lambda outputs, targets: (outputs.sigmoid(), targets.int()),
    )
    trainer = Trainer(
        model,
        partial(torch.optim.AdamW, lr=2e-3, weight_decay=0.1),
        nn.BCEWithLogitsLoss(),
        callbacks=[
            metrics,
            BestModel("eval_auroc", restore=True),
            EarlyStopping("eval_loss", patience=10),
        ],
        run_dir="runs/tumours",
    )
    history = trainer.train(train_data, num_epochs=epochs, eval_data=eval_data, batch_size=32)
    history.plot("runs/tumours/curves.png")
    measured = trainer.evaluate(test_data)  # neither trained on nor used to choose the best epoch
    print(
        f"100 unseen patients: accuracy {measured['accuracy']:.1%}, area under the ROC curve "
        f"{measured['auroc']:.4f}"
    )


if __name__ == "__main__":
    main()
