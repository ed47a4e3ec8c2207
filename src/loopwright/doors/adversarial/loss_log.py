"""The loss log of an experiment: lines of JSON that are only ever added, so that a kill spoils nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .losses import LMHistory

FILE_NAME = "loss_log.jsonl"


class LossLog:
    """`loss_log.jsonl`: each line has an epoch and, by name, the losses and the weights in them.

    `position` is where the next line goes; a run that is continued from an earlier state sets it back, and what came
    after that state is replaced when it writes.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.position = self.path.stat().st_size if self.path.is_file() else 0

    def append(self, epoch: int, histories: Mapping[str, LMHistory]) -> None:
        losses = {name: history.losses for name, history in histories.items() if history.losses}
        if not losses:
            return
        weights = {name: histories[name].weights for name in losses}
        line = json.dumps({"epoch": epoch, "losses": losses, "weights": weights}).encode() + b"\n"
        self.path.touch()
        with self.path.open("r+b") as file:
            file.seek(0, 2)
            self.position = min(self.position, file.tell())  # somebody may have taken the file away
            file.seek(self.position)
            file.write(line)
            file.truncate()
        self.position += len(line)


def read_loss_log(directory: str | Path) -> dict[str, dict[str, list[float]]]:
    """All of an experiment's log: {"G_L1": {"losses": [...], "weights": [...]}, ...}."""
    result: dict[str, dict[str, list[float]]] = {}
    for text in (Path(directory) / FILE_NAME).read_text().splitlines():
        line = json.loads(text)
        for name, losses in line["losses"].items():
            kept = result.setdefault(name, {"losses": [], "weights": []})
            kept["losses"] += losses
            kept["weights"] += line["weights"][name]
    return result
