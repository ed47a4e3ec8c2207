"""Nothing in a run directory is ever executed, wherever in it somebody puts what would like to
be."""

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.callbacks import BestModel, Checkpoints
from loopwright.checkpoint import load_weights, update_name
from loopwright.errors import LoopwrightError

from ..checkpoint.helpers import resign
from ..loops import build_net
from ..runs import adam, cross_entropy

POINT, KEPT = f"checkpoints/{update_name(5)}", f"kept/{update_name(5)}"
PARTS = ["manifest.json", "state.json", "state.safetensors", "model.safetensors"]
BAIT = [
    "state.pkl",
    "data.pkl",
    "model.pt",
    "pytorch_model.bin",
    "optimizer.pt",
    ".metadata",
    "__init__.py",
]
PLACES = [
    "run.json",
    "metrics.sqlite",
    ".lock",
    "config.pkl",
    "sitecustomize.py",
    "artifacts/model.pt",
]
PLACES += [f"{folder}/{name}" for folder in (POINT, KEPT) for name in (*PARTS, *BAIT)]
PLACES += ["checkpoints/last.ckpt", "kept/best.pt"]


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[object, tuple[Path, str]]:
        return Path.write_text, (self.evidence, "it went off")


def build(run_dir: Path) -> Trainer:
    callbacks = [Checkpoints(every_updates=1), BestModel("eval_loss", restore=True)]
    return Trainer(
        build_net(), adam, cross_entropy, run_dir=run_dir, callbacks=callbacks, progress="silent"
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = torch.randn(37, 6, generator=torch.Generator().manual_seed(7))
    # as `points`
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long())
    path = tmp_path_factory.mktemp("finished") / "run"
    build(path).train(data, num_updates=5, eval_data=data, batch_size=8)
    return path


def bombs(evidence: Path) -> list[bytes]:
    """A plain pickle, a file of torch.save, and Python code."""
    saved = evidence.with_name("saved.pt")
    torch.save({"state_dict": Bomb(evidence)}, saved)
    code = f"import pathlib; pathlib.Path({str(evidence)!r}).write_text('it went off')"
    return [pickle.dumps(Bomb(evidence)), saved.read_bytes(), code.encode()]


def use(run_dir: Path, points: TensorDataset) -> None:
    """Everything that one does with a run; errors of ours are fine."""
    with suppress(LoopwrightError):
        build(run_dir).train(points, num_updates=7, eval_data=points, batch_size=8)
    for place in (run_dir / POINT, run_dir / KEPT, run_dir):
        with suppress(LoopwrightError):
            build(run_dir.with_name("other")).load(place)
        with suppress(LoopwrightError):
            load_weights(place)


def test_bombs_really_go_off_where_somebody_unpickles_them(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    pickle.loads(bombs(evidence)[0])
    assert evidence.exists()


@pytest.mark.parametrize("place", PLACES)
def test_a_bomb_in_any_place_of_a_run_does_not_go_off(
    place: str, finished: Path, points: TensorDataset, tmp_path: Path
) -> None:
    evidence = tmp_path / "evidence"
    for number, bomb in enumerate(bombs(evidence)):
        run_dir = tmp_path / str(number) / "run"
        shutil.copytree(finished, run_dir)
        target = run_dir / place
        target.write_bytes(bomb)
        if target.parent.name == update_name(5) and target.name != "manifest.json":
            resign(target.parent, files={target.name: bomb})
        use(run_dir, points)
        assert not evidence.exists()


def test_a_manifest_that_points_out_of_the_run_is_refused(
    finished: Path, points: TensorDataset, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    secret = tmp_path / "secret.safetensors"
    shutil.copy(run_dir / POINT / "model.safetensors", secret)
    manifest = json.loads((run_dir / POINT / "manifest.json").read_text())
    files = manifest["files"] | {
        "../../../secret.safetensors": manifest["files"]["model.safetensors"]
    }
    resign(run_dir / POINT, {"files": files, "models": {"model": "../../../secret.safetensors"}})
    with pytest.raises(LoopwrightError, match="not a plain file name"):
        build(tmp_path / "other").load(run_dir / POINT)
    trainer = build(run_dir)
    trainer.train(points, num_updates=5, eval_data=points, batch_size=8)
    assert trainer.progress.update == 5
