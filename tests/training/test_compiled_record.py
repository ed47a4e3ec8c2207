"""The choice of a run with `compile="step"`: in its manifest, in a resumed run, and in the time
that is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright import Callback, Trainer
from loopwright.callbacks.progress import TimeLeft
from loopwright.cli import main
from loopwright.run import Run
from loopwright.training import compiled as choice
from loopwright.training import steps
from tests.mistakes import Mistakes
from tests.training.compiled_runs import DATA, X, build, default_backend, traced

__all__ = ["traced"]  # a fixture
pytestmark = pytest.mark.usefixtures("traced")
EVEN = X[:32], DATA[1][:32]


def train(folder: Path, **given: Any) -> Trainer:
    trainer = build("step", measures=True, run_dir=folder, seed=0, **given)
    trainer.train(DATA, num_epochs=1, batch_size=16)
    return trainer


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line of `loopwright show` about compiling."""
    capsys.readouterr()
    main(["show", str(folder)])
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("  compile ")
    ]
    return line.split(None, 1)[1]


def test_the_manifest_names_the_choice_and_so_do_show_and_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choice, "FASTER", 1e9)
    fast = train(tmp_path / "fast")
    monkeypatch.setattr(choice, "FASTER", 0.0)
    slow = train(tmp_path / "slow")
    notes = [Run(tmp_path / name).manifest["compiled"] for name in ("fast", "slow")]
    for trainer, noted in zip((fast, slow), notes, strict=True):
        assert trainer.run.compiled is not None
        assert noted == trainer.run.compiled.facts()
    assert (notes[0]["choice"], notes[0]["graphs"], notes[0]["recompilations"]) == (
        "compiled",
        2,
        1,
    )
    assert (notes[1]["choice"], notes[1]["graphs"]) == ("eager", 1)
    line = shown(tmp_path / "fast", capsys)
    assert line.startswith("step: compiled (")
    assert line.endswith("without compiling)")
    assert shown(tmp_path / "slow", capsys).startswith(
        "step: eager (that would not be clearly faster ("
    )
    main(["show", str(tmp_path / "fast"), "--json"])
    assert json.loads(capsys.readouterr().out)["manifest"]["compiled"] == notes[0]
    main(["diff", str(tmp_path / "fast"), str(tmp_path / "slow")])
    out = capsys.readouterr().out
    assert "config: compile.choice" in out or "  compile.choice: " in out, out
    assert Run(tmp_path / "fast").settings["compile.choice"] == "compiled"


def test_a_resumed_run_keeps_what_its_manifest_says_and_adds_to_it(tmp_path: Path) -> None:
    for updates in (2, 4):
        trainer = build("step", run_dir=tmp_path / "run", seed=0)
        trainer.train(EVEN, num_updates=updates, batch_size=16)
        noted = Run(tmp_path / "run").manifest["compiled"]
        assert trainer.run.compiled is not None
        assert noted == trainer.run.compiled.facts()
    assert (noted["choice"], noted["graphs"], noted["recompilations"]) == ("compiled", 1, 0)
    assert trainer.run.compiled.seconds > 0


# Resuming


def test_a_run_that_goes_on_without_graphs_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mistake: Mistakes
) -> None:
    build("step", run_dir=tmp_path / "run", seed=0).train(EVEN, num_updates=2, batch_size=16)
    capsys.readouterr()
    build(None, run_dir=tmp_path / "run", seed=0, progress="lines").train(
        EVEN, num_updates=4, batch_size=16
    )
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "were compiled" in line]
    assert line.endswith("Pass compile='step' to go on as before.")
    what = "A run of `compile='step'` that is resumed without it"
    mistake.said("Checkpoints and resuming", what, line.replace(str(tmp_path), "..."))


# The time that is left


class Clock:
    """Stands for the machine's: an update takes a second, and compiling a thousand."""

    now = 0.0

    def per_update(self) -> float:
        self.now += 1.0
        return self.now

    def compile(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.now += 1000.0
        return graph.forward


class Estimates(Callback):
    """Notes the estimate at each log point."""

    def on_train_start(self, trainer: Any) -> None:
        self.left, self.seen = TimeLeft(trainer), []

    def on_log(self, trainer: Any, rows: Any) -> None:
        self.seen.append(self.left.of_run(trainer))


@pytest.fixture
def clock(traced: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(steps, "monotonic", clock.per_update)
    monkeypatch.setattr(choice, "monotonic", lambda: clock.now)
    with default_backend(clock.compile):
        yield clock


@pytest.mark.parametrize("measures", [True, False], ids=["with a trial", "resumed"])
def test_the_time_of_compiling_is_no_part_of_the_time_that_is_left(
    clock: Clock, measures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "FASTER", 1e9)
    trainer = build("step", measures=measures, callbacks=lambda: [Estimates()])
    trainer.train(EVEN, num_updates=12, batch_size=16)
    assert trainer.run.metrics.compile_seconds == pytest.approx(1000.0)
    assert trainer.progress.seconds == pytest.approx(12.0)
    assert trainer.callbacks[0].seen == pytest.approx([*range(11, -1, -1)], abs=1)
