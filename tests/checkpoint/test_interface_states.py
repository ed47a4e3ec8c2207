"""Every interface names what is wrong with a state: a field that is missing, a part it does not
know, a newer version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from loopwright.checkpoint import read_checkpoint, read_manifest, write_checkpoint
from loopwright.errors import LoopwrightError
from tests.checkpoint.helpers import resign
from tests.mistakes import raises
from tests.stored import make
from tests.training.test_state_mismatch import without

STORED = Path(make.__file__).parent / "v0_first_edition"
INTERFACES = ("simple", "lifecycle", "configured", "modular", "adversarial")
FIELDS = {
    "simple": [("simple", "run", "rows"), ("simple", "run", "stopping"), ("simple", "run", "best")],
    "lifecycle": [
        *(("lifecycle", name) for name in ("event", "seed", "history", "callbacks")),
        ("lifecycle", "history", "metrics"),
        ("lifecycle", "callbacks", "EarlyStoppingCallback", "counter"),
    ],
    "configured": [("callbacks", "EMA", "num_updates")],
    "modular": [("rng",), ("callbacks", "EMA", "models")],
    "adversarial": [
        ("callbacks", "InterfaceState"),
        *(("callbacks", "InterfaceState", name) for name in ("epoch", "losses", "scalers")),
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def newest(interface: str, folder: Path) -> Path:
    """The resume point of a stored run that the program of an interface goes on from, in a copy of
    it."""
    shutil.copytree(STORED / interface, folder, dirs_exist_ok=True)
    paths = [path.parent for path in folder.rglob("manifest.json")]
    whole = [path for path in paths if "progress" in read_checkpoint(path).tree]
    return max(
        whole, key=lambda path: (read_manifest(path).meta["update"], read_manifest(path).created)
    )


def refusal(interface: str) -> str:
    """What the program of an interface says when it goes on."""
    with pytest.raises(LoopwrightError) as raised:
        make.PROGRAMS[interface][0]()
    return str(raised.value)


@pytest.mark.parametrize("interface", INTERFACES)
def test_each_interface_refuses_a_newer_version_and_leaves_the_checkpoint(
    interface: str, folder: Path
) -> None:
    path = newest(interface, folder)
    resign(path, {"versions": {"progress": 2}})
    before = (path / "manifest.json").read_bytes()
    assert "The state of 'progress' in" in refusal(interface)
    assert (path / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("interface", INTERFACES)
def test_each_interface_refuses_a_part_that_its_next_save_would_lose(
    interface: str, folder: Path
) -> None:
    path = newest(interface, folder)
    checkpoint = read_checkpoint(path)
    meter = checkpoint.tree["meter"] | {"weights": {}}
    changed = checkpoint.tree | {"quantization": {"bits": 4}, "meter": meter}
    write_checkpoint(path, changed, checkpoint.meta)
    assert (
        "holds state of 'quantization', 'meter/weights', which this version of Loopwright does "
        "not know" in refusal(interface)
    )


@pytest.mark.parametrize(
    ("interface", "way"), [(interface, way) for interface, ways in FIELDS.items() for way in ways]
)
def test_each_interface_names_a_field_that_is_missing(
    interface: str, way: tuple[Any, ...], folder: Path
) -> None:
    path = newest(interface, folder)
    checkpoint = read_checkpoint(path)
    write_checkpoint(path, without(checkpoint.tree, *way), checkpoint.meta)
    said = refusal(interface)
    assert way[0] in said, said
    assert way[-1] in said, said


@pytest.mark.parametrize("interface", INTERFACES[:2])
def test_the_part_of_an_interface_has_a_version(interface: str, folder: Path) -> None:
    path = newest(interface, folder)
    resign(path, {"versions": {interface: 2}})
    assert f"The state of {interface!r} in" in refusal(interface)


def test_the_native_trainer_says_that_it_leaves_out_the_part_of_an_interface(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from torch import nn
    from torch.optim.lr_scheduler import OneCycleLR

    from loopwright import Trainer
    from tests.stored.parts import classifier

    path = newest("simple", folder)
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    trainer = Trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        scheduler=OneCycleLR(optimizer, 0.05, total_steps=25),
    )
    trainer.load(path)
    assert (
        "was saved by the simple interface; state that only this interface uses was ignored."
        in capsys.readouterr().out
    )


def test_a_stored_checkpoint_has_no_versions_and_is_saved_again_with_them(folder: Path) -> None:
    path = newest("simple", folder)
    assert "versions" not in json.loads((path / "manifest.json").read_text())
    write_checkpoint("again", read_checkpoint(path).tree)
    assert read_manifest("again").versions["simple"] == 1
    with raises("no-checkpoint"):
        read_manifest("nowhere")
