"""A model's weights alone: from a checkpoint, a safetensors file or somebody's `.pt`, and to
either."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CheckpointError
from .atomic import staged_file
from .format import check_files, read_checkpoint, weight_path, write_checkpoint
from .inspect import is_checkpoint, published_file
from .layout import SHARDS, parse_json, unreadable
from .manifest import SAFE, check_file, read_manifest, weights_format
from .sharded import is_dtensor, place_like
from .tensors import (
    DTYPES,
    StoredFiles,
    StoredTensor,
    plain_tensor,
    read_all,
    read_tensors,
    stored_shards,
    stored_tensors,
    unescape,
    write_tensors,
)

PICKLED = (".pt", ".pth", ".bin")
WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "weights")


def load_weights(path: str | os.PathLike[str], *, model: str | None = None) -> dict[str, Tensor]:
    """Load the weights of a model from a checkpoint, a kept model or a file; from a run, use
    `loopwright.load_weights`.

    The content tells what a file is, whatever its name ends in. A file of torch's is read with
    torch's restricted reader, which runs no code, and only with that one.

    Args:
        path: A checkpoint directory, a folder of Hugging Face's, a safetensors file, or a file that
            `torch.save` wrote.
        model: Which model, where a checkpoint holds several.

    Returns:
        A state dict on the CPU.

    Raises:
        CheckpointError: It is damaged, or holds no state dict, or several models and none was
            named.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from torch import nn
        >>> from loopwright.checkpoint import load_weights, save_weights
        >>> with TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/model.safetensors", nn.Linear(2, 1).state_dict())
        ...     sorted(load_weights(f"{folder}/model.safetensors"))
        ['bias', 'weight']
    """
    source = Path(path)
    if source.is_dir():
        published = None if is_checkpoint(source) else published_file(source)
        return _from_checkpoint(source, model) if published is None else _from_published(published)
    return _from_file(source)


def _from_file(source: Path) -> dict[str, Tensor]:
    if is_safetensors(source):
        return read_tensors(source)
    return state_dict_in(read_pickle(source), source)[0]


def is_safetensors(path: Path) -> bool:
    """Whether a file holds safetensors, or at least claims to by its name."""
    if not path.is_file():
        raise CheckpointError(
            "no-weights", f"There is neither a checkpoint nor a file of weights at {path}."
        )
    try:
        return path.suffix == SAFE or weights_format(path) == SAFE
    except OSError as error:
        raise unreadable(path, error) from error


def save_weights(
    path: str | os.PathLike[str],
    state_dict: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    force: bool = False,
) -> None:
    """Write a state dict as plain safetensors, or in torch's own format where the name ends in
    `.pt`.

    Of what may be there already, only a file of weights is replaced.

    Args:
        path: The file to write; it ends in `.safetensors`, `.pt`, `.pth` or `.bin`.
        state_dict: Tensors by name.
        metadata: Texts for the header of a safetensors file.
        force: Replace a file of any kind; a directory never.

    Raises:
        CheckpointError: An entry is no tensor, the name has another ending, or the file cannot be
            written.
        ConfigurationError: Something else than weights stands at the path.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> from loopwright.checkpoint import save_weights
        >>> with TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/model.pt", {"weight": torch.ones(2)})
        ...     torch.load(f"{folder}/model.pt", weights_only=True)
        {'weight': tensor([1., 1.])}
    """
    destination = Path(path)
    if destination.suffix not in (SAFE, *PICKLED):
        onnx = " (For ONNX, use `loopwright.checkpoint.onnx.export_module(model, inputs, path)`.)"
        raise CheckpointError(
            "weights-ending",
            f"Weights are saved as {SAFE} or {', '.join(PICKLED)}, but {destination} ends in none "
            "of these: use "
            f"{destination.stem + SAFE!r}.{onnx if destination.suffix == '.onnx' else ''}",
        )
    tensors = {name: _checked(name, tensor) for name, tensor in state_dict.items()}
    check_file(destination, force=force)
    try:
        with staged_file(destination) as staging:
            if destination.suffix == SAFE:
                write_tensors(staging, tensors, {"format": "pt", **(metadata or {})})
            else:
                _write_pickle(staging, tensors)
    except OSError as error:
        raise CheckpointError(
            "weights-not-written", f"Weights could not be written to {destination}: {error}."
        ) from error


def _checked(name: str, tensor: Tensor) -> Tensor:
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        raise CheckpointError(
            "weights-not-tensors",
            f"Entry {name!r} of the state dict is {type(tensor).__name__}, not a tensor: remove "
            "it, or save a complete checkpoint.",
        )
    if tensor.dtype not in DTYPES:
        raise CheckpointError(
            "weights-dtype",
            f"Entry {name!r} is {tensor.dtype}, which safetensors does not support: cast it.",
        )
    return plain_tensor(tensor, name)


def _write_pickle(path: Path, tensors: dict[str, Tensor]) -> None:
    with path.open("xb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())


def _from_checkpoint(directory: Path, model: str | None) -> dict[str, Tensor]:
    manifest = read_manifest(directory)
    names = sorted(manifest.models)
    if model is None and len(names) != 1:
        raise CheckpointError(
            "which-model",
            f"{directory} holds the models {names}: choose one with `model=` (in a shell: --model).",
        )
    name = names[0] if model is None else model
    if name not in manifest.models:
        raise CheckpointError("which-model", f"{directory} holds no model {name!r}, only {names}.")
    file = manifest.models[name]
    is_sharded = SHARDS in manifest.files
    others = [other for other in manifest.files if other not in manifest.models.values()]
    check_files(directory, manifest, [file, *(others if is_sharded else ())], deep=True)
    files = StoredFiles(directory)
    weights = dict(stored_tensors(directory, file, files))
    start = weight_path(name, "")
    shards = stored_shards(directory, manifest.files, files) if is_sharded else {}
    for path, tensor in shards.items():
        key = path.removeprefix(start)
        if path.startswith(start) and "/" not in key:
            weights[unescape(key)] = tensor
    return read_all(weights)


def _from_published(file: Path) -> dict[str, Tensor]:
    """The weights of a folder of Hugging Face's: in one file, or in those that its index names."""
    if file.suffix != ".json":
        return _from_file(file)
    index = parse_json(file.read_bytes(), str(file))
    table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict) or not table:
        raise CheckpointError(
            "weights-index", f"{file} has no table `weight_map` of tensors and their files."
        )
    parts = sorted({str(part) for part in table.values()})
    if outside := next((part for part in parts if Path(part).name != part), None):
        raise CheckpointError(
            "weights-index", f"{file} names the file {outside!r}, which is not in the same folder."
        )
    weights = {
        name: tensor for part in parts for name, tensor in _from_file(file.with_name(part)).items()
    }
    if missing := sorted(table.keys() - weights.keys()):
        raise CheckpointError(
            "weights-index",
            f"{file} names {missing[0]!r}, which is not in {table[missing[0]]}: download it again.",
        )
    return weights


def read_pickle(path: Path) -> Any:
    """What a file of torch's holds, as far as that is plain values and tensors."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an untrusted file fails in any way it likes; none of them is ours
        raise CheckpointError(
            "unsafe-pickle",
            f"{path} was refused: it is damaged, or it contains more than plain tensors, and "
            "loading anything else could run code from the file. If you trust it, convert it "
            "with `safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')`. "
            f"({error})",
        ) from error


def state_dict_in(content: Any, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state dict that such a file is, or has under one of the usual names, and what is beside
    it there."""
    if isinstance(content, Mapping):
        if _is_state_dict(content):
            return dict(content), {}
        for key in WRAPPERS:
            if isinstance(content.get(key), Mapping) and _is_state_dict(content[key]):
                return dict(content[key]), {
                    str(name): value for name, value in content.items() if name != key
                }
    keys = sorted(map(str, content))[:8] if isinstance(content, Mapping) else type(content).__name__
    raise CheckpointError(
        "no-state-dict",
        f"{path} contains no state dict, only {keys}: save only `model.state_dict()`.",
    )


def _is_state_dict(content: Mapping[object, object]) -> bool:
    return bool(content) and all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()
    )


# What people call these entries of a file that they write with `torch.save`.
OPTIMIZER = ("optimizer_state_dict", "optimizer")
SCHEDULER = ("scheduler_state_dict", "lr_scheduler_state_dict", "scheduler", "lr_scheduler")


@dataclass(frozen=True, slots=True)
class Parts:
    """State dicts by the names of the components they belong to, and what else the file holds."""

    path: Path
    models: Mapping[str, Any]
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    schedules: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tree(self) -> dict[str, Any]:
        """All of it, as a checkpoint holds it."""
        return {
            "models": self.models,
            "optimizers": self.optimizers,
            "schedules": self.schedules,
            **self.rest,
        }


def write_parts(
    path: str | Path,
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, Any],
    schedules: Mapping[str, Any] | None = None,
    *,
    rest: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write components alone to a checkpoint directory, for `read_parts`; one process can do it.

    Args:
        path: the directory.
        models: the models by name.
        optimizers: the optimizers by name.
        schedules: the schedulers by name.
        rest: further entries of the checkpoint.
        meta: what a listing shows without reading the checkpoint.
    """
    parts = {"models": models, "optimizers": optimizers, "schedules": schedules or {}}
    tree = {
        part: {name: component.state_dict() for name, component in components.items()}
        for part, components in parts.items()
    }
    write_checkpoint(path, {**tree, **(rest or {})}, dict(meta or {}))


def read_parts(path: str | Path) -> Parts:
    """Read a checkpoint directory, or a file of weights with or without `optimizer_state_dict` and
    the like."""
    source = Path(path)
    if source.is_dir():
        tree = read_checkpoint(source).tree
        if not isinstance(tree, Mapping):
            raise CheckpointError(
                "not-a-trainer-state",
                f"{source} holds {type(tree).__name__} instead of the state of models and "
                "optimizers.",
            )
        rest = dict(tree)
        models, optimizers, schedules = (
            rest.pop(part, {}) for part in ("models", "optimizers", "schedules")
        )
        return Parts(source, models, optimizers, schedules, rest)
    if is_safetensors(source):
        return Parts(source, {"model": load_weights(source)})
    weights, rest = state_dict_in(read_pickle(source), source)
    optimizer, scheduler = (_first(rest, names) for names in (OPTIMIZER, SCHEDULER))
    return Parts(
        source,
        {"model": weights},
        {} if optimizer is None else {"optimizer": optimizer},
        {} if scheduler is None else {"scheduler": scheduler},
        rest,
    )


def _first(entries: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Take the entry out that has the first of these names; None where there is none."""
    found = [name for name in names if entries.get(name) is not None]
    return entries.pop(found[0]) if found else None


def load_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load weights into a model, of which this process may hold a part only."""
    own = model.state_dict()
    if any(isinstance(v, StoredTensor) for v in saved.values()) or any(
        map(is_dtensor, own.values())
    ):
        placed = {
            k: place_like(v, own[k]) if isinstance(own[k], Tensor) else v for k, v in saved.items()
        }
        model.load_state_dict(placed)
    else:
        model.load_state_dict(saved)


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load the state; torch casts it to the parameters' type, which is undone where the optimizer
    keeps another."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = _placed(state, params)
    optimizer.load_state_dict(state)
    for index, saved in state["state"].items():
        own = optimizer.state[params[index]]
        for key, value in saved.items():
            if (
                isinstance(value, Tensor)
                and isinstance(own.get(key), Tensor)
                and own[key].dtype != value.dtype
            ):
                own[key] = value.to(own[key].device)


def _placed(state: dict[str, Any], params: Sequence[Tensor]) -> dict[str, Any]:
    """The state with its tensors sharded as the parameters are that they belong to."""
    placed = {}
    for index, saved in state["state"].items():
        param = params[index]
        placed[index] = {
            key: place_like(value, param)
            if isinstance(value, StoredTensor) or (isinstance(value, Tensor) and is_dtensor(param))
            else value
            for key, value in saved.items()
        }
    return {**state, "state": placed}
