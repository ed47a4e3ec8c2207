"""What stands at a path is replaced only where Loopwright wrote it; anything else is refused and
stays as it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Trainer
from loopwright.checkpoint import (
    CheckpointStore,
    load_weights,
    read_checkpoint,
)
from loopwright.checkpoint.store import update_name
from loopwright.interfaces import lifecycle
from loopwright.interfaces.simple import Trainer as Simple
from tests.mistakes import raises

DATA = TensorDataset(torch.arange(64.0).reshape(16, 4) / 64, torch.arange(16.0).reshape(16, 1))


def build(**settings: Any) -> Trainer:
    model = nn.Linear(4, 1)
    return Trainer(
        model, torch.optim.Adam(model.parameters()), nn.MSELoss(), progress="silent", **settings
    )


def thesis(folder: Path) -> Path:
    """Somebody's work of years."""
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("chapter one")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_saving_refuses_a_folder_of_somebody_s_work(tmp_path: Path, mistake: Any) -> None:
    folder = thesis(tmp_path / "results")
    with raises("foreign-files", "tex"):
        build().save(folder)
    assert content(tmp_path) == {"results/thesis.tex": b"chapter one"}


def test_saving_refuses_a_file(tmp_path: Path, mistake: Any) -> None:
    (tmp_path / "best_model.pt").write_text("weights of another library")
    with raises("path-is-a-file"):
        build().save(tmp_path / "best_model.pt")
    assert content(tmp_path) == {"best_model.pt": b"weights of another library"}


def test_saving_refuses_the_folder_that_the_program_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises("path-is-current-folder"):
        build().save(".")


def test_saving_replaces_a_checkpoint_and_fills_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    for _ in range(2):
        trainer = build()
        trainer.save(tmp_path / "saved")
        assert torch.equal(load_weights(tmp_path / "saved")["weight"], trainer.model.weight)


def test_saving_replaces_a_checkpoint_that_is_damaged(tmp_path: Path) -> None:
    build().save(tmp_path / "saved")
    (tmp_path / "saved" / "manifest.json").write_text("{")
    trainer = build()
    trainer.save(tmp_path / "saved")
    assert torch.equal(load_weights(tmp_path / "saved")["weight"], trainer.model.weight)


def test_saving_through_a_link_writes_where_it_leads_and_leaves_nothing_beside_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "saved").symlink_to(tmp_path / "big" / "saved")
    for _ in range(2):
        build().save(tmp_path / "saved")
    assert (tmp_path / "saved").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["big", "saved"]
    assert os.listdir(tmp_path / "big") == ["saved"]
    read_checkpoint(tmp_path / "saved")


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
def test_weights_are_exported_again_over_weights_and_over_nothing_else(
    name: str, tmp_path: Path
) -> None:
    for _ in range(2):
        trainer = build()
        trainer.export(tmp_path / name)
        assert torch.equal(load_weights(tmp_path / name)["weight"], trainer.model.weight)
    (tmp_path / name).write_text("my notes")
    with raises("not-a-weights-file"):
        trainer.export(tmp_path / name)
    assert content(tmp_path) == {name: b"my notes"}


@pytest.mark.parametrize("address", ["s3://bucket/run", "file:///x"])
def test_an_address_is_refused_wherever_files_are_written(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(4, 1)
    simple = Simple(model, torch.optim.Adam(model.parameters()), nn.MSELoss())
    for attempt in (
        lambda: build(run_dir=address),
        lambda: build(run_dir=Path(address)),
        lambda: build().save(address),
        lambda: build().export(f"{address}.pt"),
        lambda: simple.train(DataLoader(DATA, batch_size=4), 1, save_dir=address),
    ):
        with raises("remote-path"):
            attempt()
    assert os.listdir(tmp_path) == []


# The simple interface


class Plain(Simple):
    """Writes its checkpoints as people do, to names without a suffix."""

    def _save_checkpoint(self, path: str, epoch: int, metric_value: float | None = None) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        assert self.optimizer is not None
        content = {
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
        }
        torch.save(
            content | {"scheduler_state_dict": self.scheduler.state_dict(), "epoch": epoch}, path
        )


def test_a_checkpoint_file_without_a_suffix_is_loaded_whole(tmp_path: Path) -> None:
    def build_plain() -> Plain:
        model = nn.Linear(4, 1)
        scheduler = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)  # noqa: E731
        return Plain(
            model, torch.optim.Adam(model.parameters(), 0.1), nn.MSELoss(), scheduler=scheduler
        )

    first = build_plain()
    for _ in range(2):  # what code of the user's own wrote, it may write again
        first.train(DataLoader(DATA, batch_size=4), 3, save_dir=tmp_path)
    path = tmp_path / "checkpoint_epoch_3"
    saved = torch.load(path)  # with the names that others give its parts
    torch.save({key.removesuffix("_state_dict"): value for key, value in saved.items()}, path)
    second = build_plain()
    loaded = second.load_checkpoint(path)
    assert loaded["epoch"] == 2
    assert loaded["optimizer_state_dict"] is not None
    assert torch.equal(second.model.weight, first.model.weight)
    own, other = (t.optimizer.state_dict()["state"][0]["exp_avg"] for t in (first, second))  # type: ignore[union-attr]
    assert torch.equal(own, other)
    assert second.scheduler.last_epoch == first.scheduler.last_epoch == 6


# The lifecycle interface


def run_lifecycle(
    callback: Any, kind: type[lifecycle.Trainer] = lifecycle.Trainer
) -> lifecycle.Trainer:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    trainer = kind(model=model, loss_func=nn.MSELoss(), optimizer=optimizer, callbacks=[callback])
    trainer.train(train_dataset=DATA, eval_dataset=DATA, num_epochs=1, per_device_batch_size=4)
    return trainer


def test_the_best_model_s_path_is_looked_at_before_the_first_step(
    tmp_path: Path, mistake: Any
) -> None:
    path = tmp_path / "best_model.pt"
    path.write_text("weights of another library")
    with raises("path-is-a-file"):
        run_lifecycle(lifecycle.SaveBestModelCallback(path))
    thesis(tmp_path / "out")
    with raises("foreign-files", "thesis.tex"):
        run_lifecycle(lifecycle.SaveBestModelCallback(tmp_path / "out"))
    assert content(tmp_path) == {
        "best_model.pt": b"weights of another library",
        "out/thesis.tex": b"chapter one",
    }


def test_training_states_do_not_replace_what_is_not_theirs(tmp_path: Path) -> None:
    thesis(tmp_path / "states" / "final")
    with raises("foreign-files", "thesis.tex"):
        run_lifecycle(lifecycle.SaveTrainingStateCallback(tmp_path / "states"))
    trainer = run_lifecycle(lifecycle.SaveBestModelCallback(tmp_path / "best"))
    for save in (trainer.save_checkpoint, trainer.save_training_state):
        with raises("foreign-files", "thesis.tex"):
            save(tmp_path / "states" / "final")
    assert (tmp_path / "states" / "final" / "thesis.tex").read_text() == "chapter one"


def test_whoever_writes_files_of_their_own_may_write_them_again(tmp_path: Path) -> None:
    class Own(lifecycle.Trainer):
        def save_checkpoint(self, save_path: Any, *args: Any, **kwargs: Any) -> None:
            torch.save({"model_state_dict": self.model.state_dict()}, save_path)

    for _ in range(2):
        trainer = run_lifecycle(lifecycle.SaveBestModelCallback(tmp_path / "best_model.pt"), Own)
    assert torch.equal(
        torch.load(tmp_path / "best_model.pt")["model_state_dict"]["weight"], trainer.model.weight
    )


# A user's own copies


def save_updates(store: CheckpointStore, *updates: int) -> None:
    for update in updates:
        store.save(update_name(update), {"update": update}, {"update": update}, wait=True)


def test_a_copy_beside_resume_points_is_neither_pruned_nor_resumed_from(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    save_updates(store, 1)
    shutil.copytree(tmp_path / update_name(1), tmp_path / "good-one-keep-me")
    shutil.copytree(tmp_path / update_name(1), tmp_path / f"{update_name(1)}-copy")
    save_updates(store, 2, 3)
    copies = {"good-one-keep-me", f"{update_name(1)}-copy"}
    assert set(os.listdir(tmp_path)) == copies | {update_name(3)}
    shutil.copytree(tmp_path / update_name(3), tmp_path / "z-later")
    newest = CheckpointStore(tmp_path).newest()
    assert newest is not None
    assert newest.path.name == update_name(3)
    assert store.discard(after_update=0) == [update_name(3)]
    assert set(os.listdir(tmp_path)) == copies | {"z-later"}
    assert read_checkpoint(tmp_path / "good-one-keep-me").tree == {"update": 1}


def test_a_run_goes_on_from_its_own_resume_point_and_leaves_a_copy_alone(tmp_path: Path) -> None:
    def run(num_epochs: int) -> Trainer:
        torch.manual_seed(0)
        trainer = build(run_dir=tmp_path / "run")
        trainer.train(DATA, num_epochs, batch_size=4)
        return trainer

    run(1)
    points = tmp_path / "run" / "checkpoints"
    shutil.copytree(points / update_name(4), points / "good-one-keep-me")
    before = content(points / "good-one-keep-me")
    for num_epochs in (2, 3, 5):
        assert run(num_epochs).progress.epoch == num_epochs
    assert content(points / "good-one-keep-me") == before
