"""Each interface's own program with trackers among its callbacks: what it trains is the same, and
its metrics are there."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Interrupted
from loopwright.cli import main
from loopwright.interfaces import adversarial, lifecycle, modular, simple
from loopwright.trackers import CSV, JSONL, Track

from ..interfaces.adversarial.runs import continued, tiny, write_data
from ..interfaces.adversarial.runs import train as train_pairs
from ..mistakes import raises
from .runs import Recorded, losses_in_csv, points, read_csv, read_jsonl


def dataset() -> TensorDataset:
    return TensorDataset(*points())


def loader() -> DataLoader:
    return DataLoader(dataset(), batch_size=8, shuffle=True)


def linear() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(6, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def epochs(path: Path, *names: str) -> list[tuple[float, ...]]:
    return [
        tuple(float(line[name]) for name in names)
        for line in read_csv(path)
        if line["kind"] == "epoch"
    ]


# simple


def simple_trainer() -> simple.Trainer:
    return simple.Trainer(*linear(), nn.functional.cross_entropy)


def test_simple_steps_and_the_metrics_that_train_returns_are_tracked(tmp_path):
    seen, trainer, plain = [], simple_trainer(), simple_trainer()
    callbacks = [lambda trainer, epoch, metrics: seen.append(epoch), CSV(tmp_path / "run.csv")]
    history = trainer.train(loader(), 2, loader(), callbacks=callbacks)
    assert history == plain.train(loader(), 2, loader())
    assert torch.equal(trainer.model.weight, plain.model.weight)
    assert [step for step, _ in losses_in_csv(tmp_path / "run.csv")] == list(range(1, 11))
    assert epochs(tmp_path / "run.csv", "train_loss", "eval_loss") == list(
        zip(history["train_loss"], history["eval_loss"], strict=True)
    )
    assert seen == [0, 1]
    trainer.train(loader(), 1)
    assert len(read_csv(tmp_path / "run.csv")) == 12, "a call without the tracker is not tracked"


def test_simple_run_that_goes_on_from_a_checkpoint_has_each_step_once(tmp_path):
    path, whole = tmp_path / "run.csv", simple_trainer()
    history = whole.train(loader(), 3, loader())
    first = simple_trainer()
    first.train(loader(), 2, loader(), save_dir=tmp_path / "saved", callbacks=[CSV(path)])
    second = simple_trainer()
    second.load_checkpoint(tmp_path / "saved" / "checkpoint_epoch_1")
    second.train(loader(), 2, loader(), callbacks=[CSV(path)])
    assert torch.equal(second.model.weight, whole.model.weight)
    assert [step for step, _ in losses_in_csv(path)] == list(range(1, 16))
    assert [loss for (loss,) in epochs(path, "eval_loss")] == history["eval_loss"]


# lifecycle


def lifecycle_trainer(*callbacks, kind=lifecycle.Trainer) -> lifecycle.Trainer:
    model, optimizer = linear()
    return kind(model, nn.functional.cross_entropy, optimizer, callbacks=callbacks)


def test_lifecycle_steps_and_the_run_history_are_tracked(tmp_path):
    torch.manual_seed(0)
    trainer = lifecycle_trainer(CSV(tmp_path / "run.csv"), JSONL(tmp_path / "run.jsonl"))
    trainer.train(dataset(), 2, dataset())
    torch.manual_seed(0)
    plain = lifecycle_trainer()
    plain.train(dataset(), 2, dataset())
    assert torch.equal(trainer.model.weight, plain.model.weight)
    values = [
        plain.run_history.get_metric_values(name)
        for name in ("train_loss_epoch", "eval_loss_epoch")
    ]
    assert [step for step, _ in losses_in_csv(tmp_path / "run.csv")] == list(range(1, 11))
    assert epochs(tmp_path / "run.csv", "train_loss_epoch", "eval_loss_epoch") == list(
        zip(*values, strict=True)
    )
    lines = read_jsonl(tmp_path / "run.jsonl")
    assert lines[0]["config"]["optimizer.lr"] == 0.1
    assert lines[-1] == {"kind": "end", "state": "finished", "reason": None}


def test_lifecycle_run_that_fails_or_is_stopped_ends_so_in_the_tracker(tmp_path):
    class Failing(lifecycle.Trainer):
        def train_epoch_end(self):
            raise ZeroDivisionError("no")

    class Interrupting(lifecycle.Trainer):
        def train_epoch_start(self):
            super().train_epoch_start()
            signal.raise_signal(signal.SIGTERM)

    class Stopping(lifecycle.TrainerCallback):
        def on_train_epoch_end(self, trainer, **kwargs):
            raise lifecycle.StopTrainingError("enough")

    trackers = [Recorded(), Recorded(), Recorded()]
    with pytest.raises(ZeroDivisionError):
        lifecycle_trainer(Track(trackers[0]), kind=Failing).train(dataset(), 2)
    with pytest.raises(Interrupted):
        lifecycle_trainer(Track(trackers[1]), kind=Interrupting).train(dataset(), 2)
    lifecycle_trainer(Track(trackers[2]), Stopping()).train(dataset(), 2)
    assert [tracker.ends for tracker in trackers] == [
        *([("failed", "ZeroDivisionError: no")], [("interrupted", "SIGTERM")], [("stopped", None)])
    ]
    assert next(row.values for row in trackers[2].rows if row.kind == "epoch").keys() == {
        "train_loss_epoch"
    }


def test_lifecycle_evaluation_inside_an_epoch_comes_after_the_steps_before_it():
    tracker = Recorded()
    evaluating = lifecycle.StepBasedEvaluationCallback(eval_every_n_steps=2)
    lifecycle_trainer(evaluating, Track(tracker)).train(dataset(), 1, dataset())
    steps = [step for _, step in tracker.order]
    assert steps == sorted(steps)
    assert [row.step for row in tracker.rows if row.kind == "step"] == [1, 2, 3, 4, 5]
    assert len([row for row in tracker.rows if "intermediate_eval_loss" in row.values]) == 2


@pytest.mark.parametrize("is_first", [True, False], ids=["tracks-then-saves", "saves-then-tracks"])
def test_lifecycle_run_that_is_resumed_has_each_step_and_epoch_once(tmp_path, is_first):
    """The state is saved in the very event in which an epoch is tracked."""

    def program():
        torch.manual_seed(0)
        saving = lifecycle.SaveTrainingStateCallback(tmp_path / "state", save_every_n_epochs=1)
        callbacks = [CSV(tmp_path / "run.csv"), saving]
        return lifecycle_trainer(*(callbacks if is_first else reversed(callbacks)))

    program().train(dataset(), 2, dataset())
    again = program()
    again.train(dataset(), 3, dataset(), resume_from=tmp_path / "state" / "epoch_1")
    assert [step for step, _ in losses_in_csv(tmp_path / "run.csv")] == list(range(1, 16))
    found = [loss for (loss,) in epochs(tmp_path / "run.csv", "eval_loss_epoch")]
    assert found == again.run_history.get_metric_values("eval_loss_epoch")


# modular


def test_modular_steps_and_validation_are_tracked(tmp_path):
    class Regression(modular.DreamTrainer):
        def configure_models(self):
            torch.manual_seed(1)
            self.model = nn.Linear(6, 2)

        def configure_optimizers(self):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def configure_dataloaders(self):
            return loader(), loader()

        def loss(self, batch):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.backward(loss)
            self.step(self.optimizer)
            return {"loss": loss}

        def validation_step(self, batch, batch_idx):
            return {"loss": self.loss(batch)}

    trainers = []
    for callbacks in ([], [CSV(tmp_path / "run.csv")]):
        config = modular.DreamTrainerConfig(n_epochs=2, callbacks=callbacks, progress="silent")
        trainers.append(Regression(config))
        trainers[-1].fit()
    assert torch.equal(trainers[0].model.weight, trainers[1].model.weight)
    assert [step for step, _ in losses_in_csv(tmp_path / "run.csv")] == list(range(1, 11))
    assert len(epochs(tmp_path / "run.csv", "epoch/loss", "val_loss")) == 2


# configured

MODULE = """
import torch
from torch import nn
from loopwright.interfaces.configured import BaseTrainer

class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x)

class Points(torch.utils.data.Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.x[index].sum(0, keepdim=True)}

class Mine(BaseTrainer):
    def loss_compute(self, forward_output, targets):
        return {"mse": nn.functional.mse_loss(forward_output, targets["y"])}
"""
RUN = """
output_path: out
model: {kind: tracked_parts.Net, in_features: 6, out_features: 1, optimizer: {kind: SGD, lr: 0.01}}
datasets: {train: {kind: tracked_parts.Points, n: 40}}
trainer:
  kind: tracked_parts.Mine
  max_epochs: 2
  effective_batch_size: 8
  forward_properties: [x]
  target_properties: [y]
  callbacks:
    - {kind: CSV, path: log.csv}
    - JSONL
    - {kind: TensorBoard, folder: logs, every: 2}
"""


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tracked_parts.py").write_text(MODULE)
    Path("run.yaml").write_text(textwrap.dedent(RUN))
    return tmp_path


def test_configured_run_names_trackers_in_its_file_and_goes_on_in_them(project):
    assert main(["train", "run.yaml"]) == 0
    assert main(["train", "run.yaml", "trainer.max_epochs=3"]) == 0
    assert [step for step, _ in losses_in_csv(project / "log.csv")] == list(range(1, 16))
    assert len(epochs(project / "log.csv", "epoch/mse")) == 3
    lines = read_jsonl(project / "out" / "metrics.jsonl")
    assert lines[0]["config"]["model.optimizer.lr"] == 0.01
    assert [line["state"] for line in lines if line["kind"] == "end"] == ["finished", "finished"]
    assert len(list((project / "logs" / "out").iterdir())) == 2, "one event file of each process"


# adversarial


def test_adversarial_experiment_is_tracked_over_its_epochs_and_goes_on_when_it_is_continued(
    tmp_path,
):
    config = tiny(write_data(tmp_path / "data"), tmp_path / "runs")
    tracker = Recorded()

    def experiment(config, *callbacks):
        return adversarial.Pix2pixTrainer(config, callbacks=callbacks)

    first = train_pairs(experiment(config, CSV(tmp_path / "run.csv"), Track(tracker)), 2)
    first.save_checkpoint()
    first.finish()
    assert (len(tracker.runs), tracker.ends) == (1, [("finished", None)]), (
        "one run, not one for each epoch"
    )
    assert tracker.runs[0].config["train.loss.lambda_l1"] == 100.0
    steps = [line["step"] for line in read_csv(tmp_path / "run.csv") if line["kind"] == "step"]
    assert steps == [str(step) for step in range(1, len(steps) + 1)]
    names = list(first.loss_manager.loss_fns)
    assert names
    rows = [row for row in tracker.rows if row.kind == "epoch"]
    assert [set(row.values) >= {f"epoch/{name}" for name in names} for row in rows] == [True, True]
    second = experiment(continued(config), CSV(tmp_path / "run.csv"))
    train_pairs(second, 1)
    second.finish()
    more = [line["step"] for line in read_csv(tmp_path / "run.csv") if line["kind"] == "step"]
    assert more == [str(step) for step in range(1, 3 * len(steps) // 2 + 1)]


def test_adversarial_refuses_callbacks_that_are_no_trackers(tmp_path):
    config = tiny(tmp_path, tmp_path / "runs")
    with raises("only-trackers", "print"):
        adversarial.Trainer(config, callbacks=[print])
