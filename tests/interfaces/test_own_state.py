"""What a user's trainer class saves by itself goes on with the run, in the core and in every
interface."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from loopwright import CheckpointError, ConfigurationError
from loopwright import Trainer as NativeTrainer
from loopwright.callbacks import Checkpoints, Rewind
from loopwright.checkpoint import read_checkpoint, write_checkpoint
from loopwright.debug import check_resume
from loopwright.interfaces.lifecycle import SaveTrainingStateCallback
from loopwright.interfaces.lifecycle import Trainer as LifecycleTrainer
from loopwright.interfaces.simple import Trainer as SimpleTrainer

from ..forked import call_forked
from ..stored.interfaces import Pictures
from ..stored.parts import classifier, points
from .configured import parts
from .modular.programs import Config, MyTrainer


class Weighted:
    """Weighs each loss by the number of the step, which no counter of the library decides; SIGKILL
    in one step."""

    number = 0
    dies_at = None
    newest: torch.Tensor  # exists from the first step on

    def weighed(self, loss):
        self.number += 1
        self.newest = loss.detach() / self.number
        if self.number == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss / self.number

    def state_dict(self):
        return super().state_dict() | {"number": self.number, "newest": self.newest}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.number, self.newest = state["number"], state["newest"]


class Native(Weighted, NativeTrainer):
    def compute_loss(self, outputs, targets):
        loss = super().compute_loss(outputs, targets)
        return self.weighed(loss) if self.model.training else loss


class Simple(Weighted, SimpleTrainer):
    def _compute_loss(self, outputs, targets):
        loss = super()._compute_loss(outputs, targets)
        return self.weighed(loss) if self.model.training else loss


class Lifecycle(Weighted, LifecycleTrainer):
    def training_run_start(self):
        self.number = 0  # as callbacks, whose states are loaded when the run has started

    def calculate_train_batch_loss(self, batch):
        output = super().calculate_train_batch_loss(batch)
        return output | {"loss": self.weighed(output["loss"])}


class Configured(Weighted, parts.CustomTrainer):
    def loss_compute(self, forward_output, targets):
        losses = super().loss_compute(forward_output, targets)
        return {"loss": self.weighed(sum(losses.values()))} if self.model.training else losses


class Modular(Weighted, MyTrainer):
    def training_step(self, batch, batch_idx):
        loss = self.weighed(nn.functional.cross_entropy(self.model(batch[0]), batch[1]))
        self.backward(loss)
        return {"loss": loss}


class Adversarial(Weighted, Pictures):
    def backward_G(self, *args, **kwargs):  # noqa: N802  (the document's name)
        self.weighed(torch.ones(()))
        self.gen[0].bias.data += 1 / self.number
        return super().backward_G(*args, **kwargs)


def native():
    model = classifier()
    saving = Checkpoints(every_updates=1, asynchronous=False)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    trainer = Native(
        model, optimizer, nn.CrossEntropyLoss(), run_dir="run", callbacks=saving, progress="silent"
    )
    return trainer, [model], partial(trainer.train, points(18), 3, points(7), batch_size=4)


def simple():
    model = classifier()
    trainer = Simple(
        model, torch.optim.Adam(model.parameters(), 0.05), nn.CrossEntropyLoss(), device="cpu"
    )
    saved = sorted(Path("saved").glob("checkpoint_epoch_*"))
    num_done = trainer.load_checkpoint(saved[-1])["num_epochs"] if saved else 0
    return (
        trainer,
        [model],
        partial(trainer.train, DataLoader(points(18), 4), 3 - num_done, save_dir="saved"),
    )


def lifecycle():
    model = classifier()
    saving = SaveTrainingStateCallback("states", save_every_n_steps=1, max_checkpoints=2)
    trainer = Lifecycle(
        model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), 0.05), [saving]
    )
    options = {"per_device_batch_size": 4, "resume_from": saving.latest}
    return trainer, [model], partial(trainer.train, points(18), 3, **options)


def configured():
    torch.manual_seed(1)
    saving = Checkpoints(every_updates=1, asynchronous=False)
    trainer = parts.build_trainer(
        Configured, max_epochs=2, effective_batch_size=8, callbacks=[saving], run_dir="run"
    )
    return trainer, [trainer.model], trainer.train


def modular():
    trainer = Modular(Config(n_epochs=2, run_dir="run", checkpoint_every_n_steps=1))
    return trainer, [trainer.model], trainer.fit


def adversarial():
    config = {
        "common": {"device": "cpu", "output_directory": "out", "experiment_name": "own"},
        "dataloader": {"batch_size": 2, "load": {"load_size": 8, "crop_size": 8}},
        "train": {"load": {"continue_train": Path("out").is_dir(), "load_epoch": "latest"}},
        "save": {"resume_updates": 1},
        "visualizer": {"visdom": {"enable": False}},
    }
    trainer = Adversarial(config)

    def train():
        for epoch in range(trainer.remaining_epochs(3)):
            trainer.train_paired(epoch)

    return trainer, [trainer.gen, trainer.disc], train


PROGRAMS = {
    made.__name__: made for made in (native, simple, lifecycle, configured, modular, adversarial)
}
SAVED = {"native": "run/checkpoints", "configured": "run/checkpoints", "modular": "run/checkpoints"}
SAVED |= {"simple": "saved", "lifecycle": "states", "adversarial": "out/own_v1"}


def run_program(made, dies_at=None):
    """Run the program, and print its state and the bits of its weights at the end."""
    trainer, models, train = made()
    trainer.dies_at = dies_at
    train()
    weights = [
        p.detach().view(torch.int32).sum().item() for model in models for p in model.parameters()
    ]
    print(json.dumps([trainer.number, trainer.newest.item(), weights]))


def outcome(made, folder, deaths=(None,)):
    folder.mkdir()
    for death in deaths:
        ended = call_forked(partial(run_program, made, death), folder)
        assert ended.code == (0 if death is None else -signal.SIGKILL), ended.err
    return json.loads(ended.out.splitlines()[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_that_was_killed_goes_on_with_the_state_of_its_trainer(name, tmp_path):
    whole = outcome(PROGRAMS[name], tmp_path / "whole")
    assert outcome(PROGRAMS[name], tmp_path / "cut", [8, None]) == whole
    saved = [path.parent for path in (tmp_path / "cut" / SAVED[name]).rglob("state.json")]
    assert saved
    assert all(set(read_checkpoint(path).tree["trainer"]) == {"number", "newest"} for path in saved)


# What the checkpoint has and the class has not, and the reverse


def build(kind, **options):
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    return kind(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        progress=options.pop("progress", "silent"),
        **options,
    )


def trained(kind=Native, num_epochs=1, **options):
    trainer = build(kind, **options)
    trainer.train(points(18), num_epochs, batch_size=4)
    return trainer


@pytest.mark.parametrize(("saving", "loading", "line"), [
    (Native, NativeTrainer, "has state of the trainer's class, but Trainer has no `load_state_dict`"),
    (NativeTrainer, Native, "was saved before Native had `state_dict`: the state of Native begins anew."),
])  # fmt: skip
def test_a_line_tells_of_state_that_only_the_checkpoint_or_only_the_class_has(
    saving, loading, line, tmp_path, capsys
):
    trained(saving).save(tmp_path / "saved")
    build(loading, progress="lines").load(tmp_path / "saved")
    assert line in capsys.readouterr().out


def test_a_checkpoint_of_an_earlier_version_of_the_adversarial_interface_goes_on_with_its_state(
    tmp_path, monkeypatch
):
    """It had the state of a subclass among those of the callbacks."""
    monkeypatch.chdir(tmp_path)
    first, _, train = adversarial()
    train()
    first.finish()
    for path in [file.parent for file in Path("out/own_v1").rglob("state.json")]:
        found = read_checkpoint(path)
        found.tree["callbacks"]["InterfaceState"]["own"] = found.tree.pop("trainer") | {
            "number": 99
        }
        write_checkpoint(path, found.tree, found.meta)
    assert adversarial()[0].number == 99


class Failing(Native):
    """Cannot load its state, after it has changed everything that it has."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen, self.average = [1, 2], torch.ones(3)

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.seen.clear()
        self.average.fill_(7)
        raise KeyError("later")


def test_a_state_that_cannot_be_loaded_changes_nothing(tmp_path):
    trained().save(tmp_path / "saved")
    trainer = build(Failing)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(
        CheckpointError, match="nothing was loaded: trainer failed with KeyError: 'later'"
    ):
        trainer.load(tmp_path / "saved")
    assert (trainer.number, trainer.seen, trainer.average.tolist()) == (0, [1, 2], [1, 1, 1])
    assert "newest" not in vars(trainer)
    assert all(
        torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items()
    )
    assert trainer.progress.step == 0


def test_a_rewind_returns_to_the_state_of_the_trainer(capsys):
    class Spiked(Native):
        numbers, newest = (), torch.zeros(())

        def compute_loss(self, outputs, targets):
            loss = super().compute_loss(outputs, targets)
            self.numbers = (*self.numbers, self.number)
            return loss * (float("nan") if len(self.numbers) == 4 else 1)

    trainer = build(Spiked, callbacks=Rewind(every_updates=2))
    trainer.train(points(18), 1, batch_size=4)
    # the fourth batch is left out; a rewind does not count
    assert trainer.numbers == (
        1,
        2,
        3,
        4,
        3,
        4,
    )
    assert trainer.number == 4


def test_a_resumed_run_is_exact_with_the_state_of_its_trainer():
    assert check_resume(partial(build, Native), points(18), batch_size=4).ok
    report = check_resume(partial(build, Unsaved), points(18), batch_size=4)
    assert "trainer.number" in str(report)
    assert "return it from a `state_dict` of your class and restore it in `load_state_dict`" in str(
        report
    )


class Unsaved(NativeTrainer):
    number = 0

    def compute_loss(self, outputs, targets):
        self.number += 1
        return super().compute_loss(outputs, targets) / self.number


# Mistakes


def half(kind, method):
    """A class that has only one of the two methods."""
    return type("Half", (kind,), {method: lambda self, *args: {}})


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_class_with_one_of_the_two_methods_is_refused(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kind = globals()[name.capitalize()]
    monkeypatch.setitem(globals(), name.capitalize(), half(kind.__mro__[2], "state_dict"))
    with pytest.raises(ConfigurationError, match="half-own-state"):
        PROGRAMS[name]()


@pytest.mark.parametrize("returned", [None, {"seen": {"names": {1, 2}}}])
def test_a_state_that_cannot_be_saved_is_refused(returned, tmp_path):
    trainer = trained(type("Own", (Native,), {"state_dict": lambda self: returned}))
    with pytest.raises((ConfigurationError, CheckpointError)):
        trainer.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
