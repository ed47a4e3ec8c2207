"""The runs of every interface are recorded, and read by `loopwright show`; what is trained does not
change by that."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from loopwright import Trainer
from loopwright.cli import main
from loopwright.interfaces.lifecycle import (
    RecordRunCallback,
    SaveTrainingStateCallback,
    StopTrainingError,
    TrainerCallback,
)
from loopwright.interfaces.lifecycle import Trainer as LifecycleTrainer
from loopwright.interfaces.simple import Trainer as SimpleTrainer
from loopwright.run import Run, find_runs

from ..distributed.ranks import run_ranks
from ..forked import call_forked
from ..loops import build_net
from ..stored import interfaces

PLACES = {  # where the program of an interface is recorded, and with how many updates
    "simple": ("saved", 25),
    "lifecycle": ("watched/run", 12),
    "configured": ("out", 12),
    "modular": ("run", 12),
    "adversarial": ("out/stored_v1", 20),
}


def is_equal(first, second):
    """Whether two outcomes are the same bit for bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            is_equal(first[key], second[key]) for key in first
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(is_equal, first, second))
    return first == second or first != first


def shown(path, capsys):
    """A run as `loopwright show --json` prints it."""
    capsys.readouterr()
    assert main(["show", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def start(folder, monkeypatch, variable=None):
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("LOOPWRIGHT_RUN_DIR", raising=False)
    if variable is not None:
        monkeypatch.setenv("LOOPWRIGHT_RUN_DIR", variable)
    torch.manual_seed(0)


@pytest.mark.parametrize("interface", PLACES)
def test_the_program_of_every_interface_is_recorded_and_trains_the_same(
    interface, tmp_path, monkeypatch, capsys
):
    start(tmp_path / "alone", monkeypatch)
    expected = getattr(interfaces, interface)()
    start(tmp_path / "recorded", monkeypatch, "watched/run")
    assert is_equal(getattr(interfaces, interface)(), expected)
    place, updates = PLACES[interface]
    assert [path.relative_to(Path.cwd()) for path in find_runs(".")] == [Path(place)]
    run = shown(place, capsys)
    assert run["manifest"]["door"] == interface
    assert (run["progress"]["update"], run["progress"]["fraction"]) == (updates, 1.0)
    assert run["metrics"]
    assert Run(place).settings
    assert Run(place).metrics.events()[0].kind == "started"


def test_a_native_program_that_has_no_directory_is_recorded_where_the_environment_says(
    points, tmp_path, monkeypatch
):
    outcomes = []
    for variable in (None, "watched"):
        start(tmp_path / str(variable), monkeypatch, variable)
        model = build_net()
        trainer = Trainer(
            model, torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss(), progress="silent"
        )
        history = trainer.train(points, num_epochs=2, eval_data=points, batch_size=8)
        outcomes.append([model.state_dict(), history.epochs, trainer.run_dir, torch.rand(3)])
    assert is_equal(*outcomes)
    assert {path.name for path in Path("watched").iterdir()} == {
        ".lock",
        "run.json",
        "metrics.sqlite",
    }
    run = Run("watched")
    assert [point.value for point in run.metrics.epochs("loss")] == [
        row["loss"] for row in outcomes[0][1]
    ]
    assert (run.state, run.manifest["door"]) == ("finished", "native")


def train_native(points, **options):
    model = build_net()
    trainer = Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), **options
    )
    trainer.train(points, num_epochs=1, batch_size=8)
    return trainer


def test_each_trainer_of_a_program_and_each_program_gets_a_record_of_its_own(
    points, tmp_path, monkeypatch, capsys
):
    start(tmp_path / "here", monkeypatch, "watched")
    first = train_native(points)
    train_native(points, progress="silent")
    first.train(points, num_epochs=1, batch_size=8)
    assert [path.name for path in find_runs(".")] == ["watched", "watched-2"]
    assert [Run(path).progress.epoch for path in find_runs(".")] == [2, 1]
    assert f"This run is recorded in {Path('watched').absolute()}." in capsys.readouterr().out


def test_where_nothing_can_be_written_the_program_trains_all_the_same(
    points, tmp_path, monkeypatch, caplog
):
    start(tmp_path / "here", monkeypatch, "a_file/run")
    Path("a_file").write_text("in the way")
    trainer = train_native(points, progress="silent")
    trainer.log_text("after", "x")
    assert trainer.progress.epoch == 1
    assert "This run is not recorded" in caplog.text


def train_on_a_rank(rank, points):
    return train_native(points, progress="silent").progress.update


def test_of_several_processes_one_records(points, tmp_path, monkeypatch):
    start(tmp_path / "here", monkeypatch, "watched")
    assert run_ranks(train_on_a_rank, 2, points) == [5, 5]
    assert [path.name for path in find_runs(".")] == ["watched"]
    assert [point.at for point in Run("watched").metrics.steps("loss")] == [1, 2, 3, 4, 5]


def test_a_program_that_is_resumed_under_the_variable_loads_its_own_checkpoints(
    points, tmp_path, monkeypatch
):
    """A state that was saved while the run was recorded fits a trainer that is not, and the other
    way round."""
    start(tmp_path / "here", monkeypatch, "watched")
    recorded = train_native(points, progress="silent")
    recorded.save("state")
    monkeypatch.delenv("LOOPWRIGHT_RUN_DIR")
    plain = train_native(points, progress="silent")
    plain.load("state")
    assert plain.progress.step == recorded.progress.step


# Simple


def simple_again(dies_at=None):
    interfaces.simple(dies_at)


@pytest.mark.parametrize("dies_at", [7, 16])
def test_a_simple_run_that_was_killed_goes_on_in_one_record(dies_at, tmp_path, monkeypatch):
    records = {}
    for name, deaths in (("whole", [None]), ("killed", [dies_at, None])):
        (tmp_path / name).mkdir()
        for death in deaths:
            ended = call_forked(partial(simple_again, death), tmp_path / name)
            assert ended.code == (0 if death is None else -signal.SIGKILL), ended.err
        metrics = Run(tmp_path / name / "saved").metrics
        records[name] = [metrics.steps("loss"), metrics.epochs("loss"), metrics.epochs("eval_loss")]
    assert records["killed"] == records["whole"]
    kinds = [event.kind for event in Run(tmp_path / "killed" / "saved").metrics.events()]
    assert (kinds.count("started"), kinds.count("resumed")) == (1, 1)


class OwnEpochs(SimpleTrainer):
    """An epoch that is written whole, with a metric of its own."""

    def train_epoch(self, train_dataloader, eval_dataloader=None, epoch=0):
        losses = [self.train_step(batch)["loss"] for batch in train_dataloader]
        self.log_text("epoch", f"{epoch}")
        return {"train_loss": sum(losses) / len(losses), "f1": epoch / 10}


def simple_trainer(kind=SimpleTrainer):
    model = build_net()
    return kind(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), device="cpu"
    )


def test_an_epoch_of_the_users_own_is_recorded_by_what_it_returns(points, tmp_path):
    history = simple_trainer(OwnEpochs).train(DataLoader(points, 8), 3, save_dir=tmp_path / "run")
    metrics = Run(tmp_path / "run").metrics
    assert [point.value for point in metrics.epochs("f1")] == history["f1"] == [0.0, 0.1, 0.2]
    assert [point.value for point in metrics.epochs("train_loss")] == history["train_loss"]
    assert [item.content for item in metrics.media("epoch")] == ["0", "1", "2"]


def test_another_run_in_the_same_save_dir_moves_the_record_of_the_first_aside(
    points, tmp_path, capsys
):
    for _ in range(2):
        simple_trainer().train(DataLoader(points, 8), 2, save_dir=tmp_path / "run")
    assert (
        "contained the record of an earlier run, which was moved to earlier-run-1."
        in capsys.readouterr().out
    )
    for folder in ("run", "run/earlier-run-1"):
        assert len(Run(tmp_path / folder).metrics.epochs("loss")) == 2


# Lifecycle


class Stops(TrainerCallback):
    def on_training_run_epoch_end(self, trainer, **kwargs):
        if trainer.run_history.current_epoch == 2:
            raise StopTrainingError("two are enough")


def lifecycle_trainer(*callbacks):
    model = build_net()
    return LifecycleTrainer(
        model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks
    )


def test_a_lifecycle_run_is_recorded_by_a_callback_with_the_metrics_of_its_history(
    points, tmp_path, capsys
):
    class Logs(TrainerCallback):
        def on_eval_epoch_end(self, trainer, **kwargs):
            trainer.run_history.update_metric("accuracy", torch.tensor(0.5))
            trainer.log_image("picture", torch.rand(3, 4, 4))

    trainer = lifecycle_trainer(Logs(), Stops(), RecordRunCallback(tmp_path / "run"))
    trainer.log_text("before", "x")
    trainer.train(points, 4, points)
    run = Run(tmp_path / "run")
    history = trainer.run_history.get_metric_values
    assert (run.state, run.reason) == ("stopped", "two are enough")
    assert [point.value for point in run.metrics.epochs("eval_loss_epoch")] == history(
        "eval_loss_epoch"
    )[:1]
    assert [point.value for point in run.metrics.epochs("accuracy")] == [0.5]
    assert {item.name for item in run.metrics.media()} == {"before", "picture"}
    assert shown(tmp_path / "run", capsys)["progress"]["limit"] == {"epoch": 4}


def lifecycle_by_epochs(points, first, event=None, epoch=None):
    """The documented pair of callbacks, in either order; SIGKILL at an event, when the other
    callbacks have had it."""

    def die(self, trainer, **kwargs):
        if trainer.run_history.current_epoch == epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    dies = type("Dies", (TrainerCallback,), {} if event is None else {event: die})
    recording, saving = (
        RecordRunCallback("run"),
        SaveTrainingStateCallback("states", save_every_n_epochs=1),
    )
    pair = [recording, saving] if first == "recording" else [saving, recording]
    trainer = lifecycle_trainer(*pair, Measures(), dies())
    torch.manual_seed(0)
    trainer.train(points, 3, points, resume_from=saving.latest)


class Measures(TrainerCallback):
    """Records a metric twice in the first epoch, and then no more."""

    def on_train_epoch_end(self, trainer, **kwargs):
        for value in (1.0, 2.0) if trainer.run_history.current_epoch == 1 else ():
            trainer.run_history.update_metric("once", value)


@pytest.mark.parametrize("first", ["recording", "saving"])
@pytest.mark.parametrize(("event", "epoch"), [
    ("on_training_run_epoch_end", 2),  # the state of the epoch exists, and its row does not
    ("on_train_epoch_start", 3),  # the row is queued
    ("on_eval_epoch_end", 3),
    ("on_training_run_end", 4),
])  # fmt: skip
def test_no_epoch_is_lost_from_the_record_of_a_lifecycle_run_that_was_killed(
    first, event, epoch, points, tmp_path
):
    records = {}
    for name, deaths in (("whole", [()]), ("killed", [(event, epoch), ()])):
        (tmp_path / name).mkdir()
        for death in deaths:
            ended = call_forked(
                partial(lifecycle_by_epochs, points, first, *death), tmp_path / name
            )
            assert ended.code == (-signal.SIGKILL if death else 0), ended.err
        metrics = Run(tmp_path / name / "run").metrics
        records[name] = {
            metric: (metrics.epochs(metric), metrics.steps(metric)) for metric in metrics.names()
        }
    assert records["killed"] == records["whole"]
    assert [point.at for point in records["killed"]["eval_loss_epoch"][0]] == [1, 2, 3]
    assert [point.at for point in records["killed"]["once"][0]] == [1]


def test_the_progress_of_a_second_lifecycle_run_is_its_own(points, tmp_path):
    class StopsAfterAnEpoch(TrainerCallback):
        def on_training_run_epoch_end(self, trainer, **kwargs):
            if trainer.run_config.num_epochs == 4:
                raise StopTrainingError("one is enough")

    trainer = lifecycle_trainer(RecordRunCallback(tmp_path / "run"), StopsAfterAnEpoch())
    trainer.train(points, 2)
    trainer.train(points, 4)
    assert [Run(tmp_path / name).progress.fraction for name in ("run", "run-2")] == [1.0, 0.25]


# Adversarial


class Shows(interfaces.Pictures):
    """Writes examples after every epoch, as `Pix2pixTrainer` does, and logs a picture of its
    own."""

    def on_epoch_end(self, **kwargs):
        super().on_epoch_end(**kwargs)
        self.save_examples(silent=True)
        self.log_image("weights", self.gen[0].weight[0], value_range=(-1, 1))


def test_examples_of_an_experiment_are_recorded_as_images(tmp_path, monkeypatch):
    start(tmp_path / "here", monkeypatch)
    config = {
        "common": {"device": "cpu", "output_directory": "out", "experiment_name": "shown"},
        "dataloader": {"batch_size": 2, "load": {"load_size": 8, "crop_size": 8}},
        "save": {"num_examples": 2},
        "visualizer": {"visdom": {"enable": False}},
    }
    trainer = Shows(config)
    for epoch in range(2):
        trainer.train_paired(epoch)
    trainer.finish()
    run = Run("out/shown_v1")
    assert run.state == "finished"
    examples = run.metrics.media("examples")
    assert [(item.step, item.position) for item in examples] == [
        (step, at) for step in (5, 10) for at in range(6)
    ]
    assert [item.caption for item in examples[:3]] == [
        "epoch1_1_input",
        "epoch1_1_output",
        "epoch1_1_target",
    ]
    for item in examples:
        written = Path("out/shown_v1/examples", f"{item.caption}.png").read_bytes()
        assert Path("out/shown_v1", item.file).read_bytes() == written
    assert len(run.metrics.media("weights")) == 2
    assert run.progress.limit == ("epoch", 200)
