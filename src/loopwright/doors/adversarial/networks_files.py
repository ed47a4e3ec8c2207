"""One network and its optimizer, to a checkpoint of their own and back from wherever an experiment has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...checkpoint import read_checkpoint, write_checkpoint
from ...checkpoint.fitting import compare_groups, compare_model, listed
from ...checkpoint.state import load_optimizer
from ...checkpoint.weights import read_pickle, state_dict_in
from ...errors import CheckpointError
from .experiment import epochs_behind, read_state, saved_epochs

KINDS = {"G": "gen", "D": "disc"}  # what the document calls networks, and their names on the trainer


def save_network(path: Path, network: nn.Module, optimizer: Optimizer | None, kind: str, epoch: int) -> None:
    tree: dict[str, Any] = {"models": {kind: network.state_dict()}}
    if optimizer is not None:
        tree["optimizers"] = {kind: optimizer.state_dict()}
    write_checkpoint(path, tree, {"epoch": epoch})


def load_network(
    directory: Path,
    epoch: int | str,
    kind: str,
    network: nn.Module,
    optimizer: Optimizer | None = None,
    names: Sequence[str] = (),
) -> int:
    """Load a network, and its optimizer if one is given; the epoch they are of.

    Looked for in `epoch{n}_net{kind}`, in the complete states, and in a `.pth.tar` of the program that the document
    describes. `names` are those that the network may have in a complete state.
    """
    number, weights, state, source = _find(directory, epoch, kind, [KINDS.get(kind, kind), *names])
    problems = [f"{kind}: {problem}" for problem in compare_model(network, weights)]
    if optimizer is not None and state is not None:
        problems += [f"optimizer of {kind}: {problem}" for problem in compare_groups(optimizer, state)]
    if problems:
        raise CheckpointError(
            f"{source} does not fit this network; nothing was loaded:{listed(problems)}\nBuild it with the settings of "
            "the run that wrote it, which are in its train1_config.json, or give load_checkpoint the network that was "
            f"saved as {kind!r}."
        )
    network.load_state_dict(weights)
    if optimizer is not None and state is not None:
        load_optimizer(optimizer, state)
    return number


def _find(directory: Path, epoch: int | str, kind: str, names: Sequence[str]) -> tuple[int, Any, Any, Path]:
    """The epoch, the weights, the optimizer's state or None, and where they were found."""
    number = _newest(directory, kind) if epoch == "latest" else int(epoch)
    exported = directory / f"epoch{number}_net{kind}"
    if epoch != "latest" and exported.is_dir():
        return int(epoch), *_from_export(exported, kind), exported
    whole = read_state(directory, epoch)
    name = None if whole is None else next((name for name in names if name in whole.tree["models"]), None)
    if whole is not None and name is not None:
        return epochs_behind(whole.tree), whole.tree["models"][name], _optimizer_of(whole.tree, name), whole.path
    if number is not None and exported.is_dir():
        return number, *_from_export(exported, kind), exported
    foreign = exported.with_name(f"{exported.name}.pth.tar")
    if number is not None and foreign.is_file():
        weights, beside = state_dict_in(read_pickle(foreign), foreign)
        return number, weights, beside.get("optimizer"), foreign
    there = sorted({path.name.split(".")[0] for path in directory.glob(f"epoch*_net{kind}*")})
    there += [f"epoch{saved}" for saved in saved_epochs(directory)]
    raise CheckpointError(
        f"{directory} has no network {kind!r} of epoch {epoch}; saved are: {', '.join(there) or 'none'}. Set "
        "train.load.load_epoch (or load_epoch=) to an epoch that was saved."
    )


def _from_export(path: Path, kind: str) -> tuple[Any, Any]:
    tree = read_checkpoint(path).tree
    return tree["models"][kind], tree.get("optimizers", {}).get(kind)


def _optimizer_of(tree: Mapping[str, Any], name: str) -> Any:
    """The state of the optimizer that is named after a network, as opt_gen is after gen."""
    optimizers = tree["optimizers"]
    found = [key for key in optimizers if name in key.split("_")]
    return optimizers[found[0]] if len(found) == 1 else None


def _newest(directory: Path, kind: str) -> int | None:
    found = (re.fullmatch(rf"epoch(\d+)_net{re.escape(kind)}(?:\.pth\.tar)?", p.name) for p in directory.glob("epoch*"))
    return max((int(match[1]) for match in found if match), default=None)
