"""Versions of state: older state is migrated, newer state refused by name, and a wrong field never
a bare KeyError."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Callback, Trainer
from loopwright.checkpoint import migrations as module
from loopwright.checkpoint import read_checkpoint, read_manifest, write_checkpoint
from loopwright.checkpoint.manifest import VersionError
from loopwright.checkpoint.migrations import ADDED, MIGRATIONS, REQUIRED, VERSIONS, upgrade
from loopwright.errors import CheckpointError, LoopwrightError
from tests.checkpoint.helpers import resign, same
from tests.training.test_state_mismatch import (
    DATA,
    assert_as_before,
    build,
    places,
    replaced,
    saved,  # noqa: F401  a fixture
    state_of,
    train,
    without,
)

NATIVE = (*REQUIRED, *ADDED)
# whose fields depend on objects of the user
OPEN = (
    "computed",
    "metrics",
    "data",
    "eval_data",
    "fingerprint",
)


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:  # noqa: F811
    return shutil.copytree(saved, tmp_path / "copied")


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return train(build(1), 3)


def refusal_of(trainer: Trainer, path: Path) -> str:
    """What a load said, which has left the trainer as it was."""
    before = state_of(trainer)
    with pytest.raises(CheckpointError) as raised:
        trainer.load(path)
    assert_as_before(trainer, before)
    return str(raised.value)


def with_version(path: Path, part: str, version: int) -> Path:
    """A checkpoint whose manifest says that a part has another version."""
    resign(path, {"versions": read_manifest(path).versions | {part: version}})
    return path


@pytest.mark.parametrize("part", NATIVE)
def test_a_newer_version_is_refused_by_part_and_number(
    part: str, trainer: Trainer, copied: Path
) -> None:
    said = refusal_of(trainer, with_version(copied, part, 7))
    assert "[newer-state]" in said
    assert f"The state of {part!r} in {copied} has version 7" in said


def test_a_newer_version_in_a_run_is_an_error_and_no_reason_to_go_back(
    mistake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        model = nn.Linear(4, 1)
        trainer = Trainer(
            model,
            torch.optim.Adam(model.parameters()),
            nn.MSELoss(),
            run_dir=tmp_path,
            progress="silent",
        )
        trainer.train(DATA, num_epochs=2, batch_size=8)

    torch.manual_seed(0)
    run()
    newest = max((tmp_path / "checkpoints").iterdir())
    with_version(newest, "progress", 2)
    what = "going on with a run that a newer Loopwright has saved"
    with mistake(
        "Checkpoints and resuming", what, VersionError, match="has version 2; this Loopwright knows"
    ):
        run()
    assert newest.is_dir()
    with_version(newest, "progress", 1)
    monkeypatch.setitem(VERSIONS, "progress", 2)
    monkeypatch.setitem(MIGRATIONS, ("progress", 1), lambda state: state["no such field"])
    with pytest.raises(VersionError, match="cannot be migrated"):
        run()
    assert newest.is_dir()


def test_migrations_lead_from_version_to_version_and_leave_what_they_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(VERSIONS, "progress", 3)
    monkeypatch.setitem(
        MIGRATIONS, ("progress", 1), lambda state: {**state, "update": state["step"] // 2}
    )
    monkeypatch.setitem(
        MIGRATIONS, ("progress", 2), lambda state: {**state, "update": state["update"] + 100}
    )
    first, second = {"progress": {"step": 8}}, {"progress": {"step": 8, "update": 5}}
    assert upgrade(first, {}, "here") == {"progress": {"step": 8, "update": 104}}
    assert upgrade(second, {"progress": 2}, "here") == {"progress": {"step": 8, "update": 105}}
    assert upgrade({"progress": {"step": 8}}, {"progress": 3}, "here") == {"progress": {"step": 8}}
    assert first == {"progress": {"step": 8}}
    with pytest.raises(
        VersionError,
        match=r"'progress' in here cannot be migrated from version 1: KeyError: 'step'",
    ):
        upgrade({"progress": {}}, {}, "here")


def test_a_higher_version_is_written_in_a_format_that_earlier_readers_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "earlier", {"progress": {}})
    assert read_manifest(tmp_path / "earlier").format == 1
    monkeypatch.setitem(VERSIONS, "progress", 2)
    write_checkpoint(tmp_path / "later", {"progress": {}})
    assert read_manifest(tmp_path / "later").format == 3
    assert read_checkpoint(tmp_path / "later").tree == {"progress": {}}


def test_a_part_that_the_manifest_names_may_not_be_absent(
    trainer: Trainer,
    saved: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    write_checkpoint(tmp_path / "cut", without(read_checkpoint(saved).tree, "metrics"))
    assert "it holds no state of 'metrics'" in refusal_of(
        trainer, with_version(tmp_path / "cut", "metrics", 1)
    )


def fields_of(tree: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The ways to all fields of the parts, but for what torch's own classes save and numbers of
    lists."""
    for way in places(
        {part: state for part, state in tree.items() if part not in ("models", "optimizers")}
    ):
        if isinstance(way[-1], str) and len(way) > 1:
            yield way


def may_be_absent(way: tuple[Any, ...]) -> bool:
    """Fields whose names are not fixed: metrics, callbacks, options of objects of the user."""
    top = way[0]
    is_entry = len(way) == 2 and top in ("callbacks", "callback_versions")
    is_value = (top in ("history", "meter") and len(way) > 2) or (
        top == "callbacks" and len(way) > 3
    )
    # counts that were added later
    is_value = is_value or (top == "lanes" and way[-1] in ("stepped", "skipped"))
    # which then has no state left, as before its first run
    is_value = is_value or way[:2] == (
        "callbacks",
        "Fussy",
    )
    return (
        top in OPEN or is_entry or is_value or (top == "schedules" and str(way[-1]).startswith("_"))
    )


def said_about(trainer: Trainer, path: Path) -> str | None:
    """What loading a checkpoint and going on from it said; None where it said nothing."""
    try:
        trainer.load(path)
        trainer.train(DATA, num_updates=1, batch_size=4)
    except LoopwrightError as error:
        return str(error)
    return None


def test_each_field_that_is_missing_is_named_with_its_part(saved: Path, tmp_path: Path) -> None:  # noqa: F811
    tree, trainer = read_checkpoint(saved).tree, train(build(1), 3)
    before, num_refused = state_of(trainer), 0
    compared = ("models", "optimizers", "schedules", "progress")
    ways = [w for w in fields_of(tree) if w[0] in compared or len(w) == 1]
    for number, way in enumerate(way for way in ways if way[2:3] != ("state",)):
        write_checkpoint(tmp_path / f"{number}", without(tree, *way))
        said = said_about(trainer, tmp_path / f"{number}")
        if said is None:
            assert may_be_absent(way), way
        else:
            part = "data position" if way[0] in ("data", "eval_data") else way[0]
            assert part in said, way
            assert str(way[-1]) in said, way
            num_refused += 1
        if not same(state_of(trainer), before):
            trainer = train(build(1), 3)
            before = state_of(trainer)
    assert num_refused > 15


@pytest.mark.parametrize(
    "way",
    [
        ("progress",),
        ("models", "model"),
    ],
)
def test_a_field_that_is_unknown_is_named_with_its_part(
    way: tuple[Any, ...],
    trainer: Trainer,
    saved: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    write_checkpoint(
        tmp_path / "later", replaced(read_checkpoint(saved).tree, torch.zeros(()), *way, "extra")
    )
    said = refusal_of(trainer, tmp_path / "later")
    assert way[0] in said
    assert "extra" in said


class Count(Callback):
    """Counts epochs, in the form that it had first."""

    def __init__(self) -> None:
        self.num_epochs = 0

    def on_epoch_end(self, trainer: Trainer, metrics: Any) -> None:
        self.num_epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.num_epochs}

    def load_state_dict(self, state: Any) -> None:
        self.num_epochs = state["count"]


def later(version: int, **body: Any) -> Callback:
    """The same callback in a later version of the user's program, under the same name."""

    def state_dict(self: Any) -> dict[str, Any]:
        return {"num_epochs": self.num_epochs}

    def load_state_dict(self: Any, state: Any) -> None:
        self.num_epochs = state["num_epochs"]

    own = {"state_version": version, "state_dict": state_dict, "load_state_dict": load_state_dict}
    return type("Count", (Count,), own | body)()  # type: ignore[no-any-return]


def counted(callback: Callback) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.MSELoss(), callbacks=[callback], progress="silent")


@pytest.fixture
def first(tmp_path: Path) -> Path:
    trainer = counted(Count())
    trainer.train(DATA, num_epochs=3, batch_size=8)
    trainer.save(tmp_path / "first")
    return tmp_path / "first"


def renamed(self: Any, state: Any, version: int) -> dict[str, Any]:
    assert version == 1
    return {"num_epochs": state["count"]}


def test_a_callback_migrates_the_state_of_its_earlier_version(first: Path) -> None:
    callback: Any = later(2, migrate_state=renamed)
    trainer = counted(callback)
    trainer.load(first)
    assert callback.num_epochs == 3
    trainer.train(DATA, num_epochs=1, batch_size=8)
    trainer.save(first)
    assert read_checkpoint(first).tree["callback_versions"]["Count"] == 2
    again: Any = later(2)  # which needs no migration any more
    counted(again).load(first)
    assert again.num_epochs == 4


def test_a_migration_that_fails_is_named_and_nothing_is_loaded(first: Path) -> None:
    callback: Any = later(
        2, migrate_state=lambda self, state, version: {"num_epochs": state["epochs"]}
    )
    with pytest.raises(
        VersionError, match=r"callback 'Count' in .* from version 1: KeyError: 'epochs'"
    ):
        counted(callback).load(first)
    assert callback.num_epochs == 0


def test_the_state_of_a_callback_that_is_gone_is_reported(
    first: Path, mistake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = counted(Callback())
    trainer.run.progress_style = "lines"
    trainer.load(first)
    said = capsys.readouterr().out
    assert said.startswith(
        f"{first} has state of the callback Count, which this trainer does not have: this state "
        "was ignored"
    )
    mistake.said(
        "Checkpoints and resuming",
        "`trainer.load(path)` without a callback that the saved run had",
        said,
    )


def test_everything_about_versions_is_read_without_torch() -> None:
    assert not hasattr(module, "torch")


def test_every_version_that_was_ever_written_can_be_migrated() -> None:
    steps = {(part, number) for part, version in VERSIONS.items() for number in range(1, version)}
    assert set(MIGRATIONS) == steps | {(part, 0) for part in ADDED}


def test_the_state_of_a_later_callback_is_refused(tmp_path: Path) -> None:
    counted(later(3)).save(tmp_path / "later")
    said = r"The state of callback .Count. in .* has version 3; this program knows versions up to 1"
    with pytest.raises(VersionError, match=said):
        counted(Count()).load(tmp_path / "later")
