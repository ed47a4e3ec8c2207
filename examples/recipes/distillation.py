"""A small network learns digits from a large one, from few labels.

python distillation.py [--epochs 40]
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from loopwright import StepResult, Trainer, seed_everything

TEMPERATURE = 3.0


class Classifier(Trainer):
    def eval_step(self, batch: list[Tensor]) -> StepResult:
        images, labels = batch
        outputs = self.forward(images)
        accuracy = (outputs.argmax(1) == labels).float().mean()
        return StepResult(F.cross_entropy(outputs, labels), metrics={"accuracy": accuracy})


class Student(Classifier):
    """Learns from the outputs of a teacher; the labels are only used to measure."""

    def configure_models(self) -> None:
        super().configure_models()
        self.teacher.requires_grad_(False).eval()  # frozen parts stay in eval mode

    def train_step(self, batch: list[Tensor]) -> dict[str, Tensor]:
        images, _ = batch
        with torch.no_grad():
            wanted = (self.teacher(images) / TEMPERATURE).softmax(1)
        got = (self.model(images) / TEMPERATURE).log_softmax(1)
        loss = TEMPERATURE**2 * F.kl_div(got, wanted, reduction="batchmean")
        self.update(loss)
        return {"loss": loss}


def build_net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    seed_everything(0)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images, labels = (
        torch.tensor(digits.data, dtype=torch.float32)[order] / 16,
        torch.tensor(digits.target)[order],
    )
    train_data, eval_data = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])
    few = (images[:100], labels[:100])
    adam = partial(torch.optim.AdamW, lr=5e-3)

    teacher = build_net(256)
    taught = Classifier(teacher, adam, nn.CrossEntropyLoss(), run_dir="runs/teacher")
    best = taught.train(train_data, num_epochs=epochs, eval_data=eval_data).last("eval_accuracy")

    alone = Classifier(build_net(16), adam, nn.CrossEntropyLoss(), run_dir="runs/alone")
    without = alone.train(few, num_epochs=epochs, eval_data=eval_data).last("eval_accuracy")

    models = {"model": build_net(16), "teacher": teacher}
    student = Student(models, {"model": adam}, run_dir="runs/student")
    history = student.train(train_data, num_epochs=epochs, eval_data=eval_data)
    history.plot("runs/student/curves.png")

    print(f"Teacher (19,210 parameters, 1,400 labels): {best:.1%}")
    print(f"Small network (1,210 parameters) with 100 labels alone: {without:.1%}")
    print(
        f"Small network taught by the teacher, without labels: {history.last('eval_accuracy'):.1%}"
    )


if __name__ == "__main__":
    main()
