"""Initial weights from another run or file: what is loaded, what is not, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from loopwright import CheckpointError, load_weights
from loopwright.callbacks import EMA, BestCheckpoint, Checkpoints, OfflineLoss
from loopwright.initializers import FromCheckpoint, load_matching

from ..callbacks.runs import Crash, assert_same_tree, build_trainer, state_of, train
from ..loops import assert_same_model, build_net
from ..mistakes import raises


class Wrapped(nn.Module):
    """The same network under other names, with a head for two classes."""

    def __init__(self, num_classes: int = 2) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16))
        self.head = nn.Linear(16, num_classes)


RENAME = {r"^0\.": "body.0.", r"^1\.": "body.1.", r"^4\.": "head."}


@pytest.fixture
def source() -> nn.Sequential:
    return build_net(seed=3)


@pytest.fixture
def file(source: nn.Module, tmp_path: Path) -> Path:
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def test_everything_of_the_same_model_is_loaded(source, file):
    model = build_net()
    report = load_matching(model, file)
    assert_same_model(model, source)
    assert report.loaded == tuple(source.state_dict())
    assert report.is_complete


def test_weights_come_from_a_state_dict_a_pt_file_or_a_checkpoint(source, tmp_path):
    torch.save({"state_dict": source.state_dict()}, tmp_path / "weights.pt")
    build_trainer(model=source).save(tmp_path / "checkpoint")
    for origin in (source.state_dict(), tmp_path / "weights.pt", tmp_path / "checkpoint"):
        model = build_net()
        load_matching(model, origin)
        assert_same_model(model, source)


def test_names_are_mapped_and_heads_of_other_shapes_are_reported(source, file):
    model = Wrapped()
    before = model.head.weight.detach().clone()
    report = load_matching(model, file, rename=RENAME)
    assert torch.equal(model.body[0].weight, source[0].weight)
    assert torch.equal(model.head.weight, before)
    assert report.mismatched == (
        "head.weight (2, 16) (source (3, 16))",
        "head.bias (2,) (source (3,))",
    )


def test_entries_of_the_model_stay_as_they_are(source, file):
    model = Wrapped(3)
    before = model.head.weight.detach().clone()
    report = load_matching(model, file, rename=RENAME, reinit=["head"], strict=True)
    assert report.kept == ("head.weight", "head.bias")
    assert report.is_complete
    assert torch.equal(model.head.weight, before)
    assert torch.equal(model.body[0].weight, source[0].weight)


def test_strict_lists_all_that_does_not_fit_and_changes_nothing(file):
    model = Wrapped()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with raises("weights-do-not-fit") as caught:
        load_matching(model, file, rename={r"^0\.": "body.0.", r"^4\.": "head."}, strict=True)
    message = str(caught.value)
    assert "mismatched (2): head.weight (2, 16) (source (3, 16))" in message
    assert "missing (5): body.1.weight" in message
    assert "unused (5): 1.bias" in message
    assert "`reinit`" in message
    assert_same_tree(dict(model.state_dict()), before)


def test_two_entries_renamed_to_one_are_refused(file):
    with raises("rename-collision", "'0.bias'", "'0.weight'", "'all'"):
        load_matching(Wrapped(), file, rename={"^.+$": "all"})


def test_code_in_a_file_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"weight": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="was refused"):
        load_matching(build_net(), tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


# Runs


@pytest.fixture
def run(tmp_path, points) -> Path:
    """A finished run whose best model is not its last."""
    loss = OfflineLoss("train", every_n_updates=4)
    best = BestCheckpoint("train_loss", every_n_updates=4)
    train(build_trainer([loss, best], run_dir=tmp_path / "first"), points, 2)
    return tmp_path / "first"


def test_a_run_begins_with_the_weights_of_another(points, tmp_path, run, capsys):
    model, other = build_net(), build_net()
    start = FromCheckpoint(run, use="best")
    trained = train(
        build_trainer([EMA(0.5), start], model, run_dir=tmp_path / "second", progress="lines"),
        points,
        2,
    )
    load_matching(other, run, use="best")
    straight = train(build_trainer([EMA(0.5)], other), points, 2)
    assert_same_model(model, other)
    assert trained.history["eval_ema_loss"] == straight.history["eval_ema_loss"]
    assert "Loaded 9 of 9 entries of the model from" in capsys.readouterr().out
    assert start.report.is_complete


def test_a_run_that_goes_on_does_not_begin_again(points, tmp_path, run):
    def start(name: str, crash: int | None) -> Any:
        saving = Checkpoints(every_updates=1, asynchronous=False)
        callbacks = [FromCheckpoint(run), Crash(crash), saving]
        return train(build_trainer(callbacks, run_dir=tmp_path / name), points, 2)

    straight = start("straight", None)
    with pytest.raises(ZeroDivisionError):
        start("crashed", 4)
    resumed = start("crashed", None)
    assert_same_tree(state_of(straight), state_of(resumed))


def test_a_model_that_is_not_there_is_refused(points, run):
    with raises("from-checkpoint-model", "model='modle'", "did you mean model?"):
        train(build_trainer([FromCheckpoint(run, model="modle")]), points)


def test_the_best_model_of_a_run_is_loaded_in_one_line(run, capsys):
    """Into a model, and into a trainer; both say which one was taken."""
    (best,) = (run / "kept").iterdir()
    model, trainer = build_net(), build_trainer(model=build_net(), progress="lines")
    model.load_state_dict(load_weights(str(run)))
    said = capsys.readouterr().out
    assert said.startswith(f"Weights of {run}: the best kept model, {best.name} (")
    trainer.load_weights(str(run))
    assert f"Loaded 9 of 9 entries of the model from {best}" in capsys.readouterr().out
    expected = build_net()
    expected.load_state_dict(load_weights(best))
    assert_same_model(model, expected)
    assert_same_model(trainer.model, expected)
