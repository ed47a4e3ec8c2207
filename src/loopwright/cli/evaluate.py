"""`loopwright eval` and `loopwright predict`: a run's model on data, and the files of its outputs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from ..checkpoint import CheckpointInfo
from ..checkpoint.atomic import staged_file, write_bytes
from ..errors import ConfigurationError
from ..interfaces.configured import Experiment
from ..run.reading import Run
from ..text import size
from ..trees import as_json, named_leaves
from .output import OK, check_output, explained, number_text, print_json, print_table, say
from .selection import checkpoint_name, find_run, pick_checkpoint, require_config, short_path
from .train import is_first_process


def eval_command(options: argparse.Namespace) -> int:
    run, checkpoint = _model_of(options)
    with explained():
        experiment = Experiment.from_run(run.path, progress="silent")
        metrics = experiment.evaluate(options.data, checkpoint=checkpoint.path)
    if not metrics:
        raise ConfigurationError(
            "nothing-to-evaluate",
            f"{run.path} has no evaluation callbacks and no data set except `train`: name a data "
            "set with --data KEY.",
        )
    if not is_first_process():
        return OK
    if options.json:
        print_json({"run": run.path, "checkpoint": checkpoint.path, "metrics": metrics})
    else:
        say(f"{short_path(run, options.root)}, {checkpoint_name(run, checkpoint)}")
        rows = [[name, number_text(value)] for name, value in metrics.items()]
        print_table(["METRIC", "VALUE"], rows, right="1")
    return OK


def predict_command(options: argparse.Namespace) -> int:
    output = Path(options.output)
    check_output(output, force=options.force, suffixes=list(SUFFIXES))
    run, checkpoint = _model_of(options)
    with explained():
        experiment = Experiment.from_run(run.path, progress="silent")
        batches = experiment.predict(options.data, checkpoint=checkpoint.path)
    if not is_first_process():
        return OK
    outputs = joined(batches)
    write_predictions(output, outputs)
    shapes = ", ".join(f"{name} {_shape(value)}" for name, value in outputs.items())
    source = checkpoint_name(run, checkpoint)
    written = f"written to {output} ({size(output.stat().st_size)})"
    say(f"Outputs of {source} on {options.data}: {shapes}, {written}.")
    return OK


def _model_of(options: argparse.Namespace) -> tuple[Run, CheckpointInfo]:
    """The run that is named, and its checkpoint."""
    run = find_run(options.name, options.root)
    require_config(run)
    return run, pick_checkpoint(run, options.checkpoint)


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return " x ".join(map(str, value.shape))
    return f"of {len(value)} {'batch' if len(value) == 1 else 'batches'}"


def joined(batches: Sequence[Any]) -> dict[str, Any]:
    """Concatenate each output over all batches: to a tensor where the shapes allow it, else to a
    list."""
    parts: dict[str, list[Any]] = {}
    for batch in batches:
        # outputs have the names of their keys; those of a tuple are numbered
        for name, value in named_leaves(batch, "" if isinstance(batch, Mapping) else "output"):
            if value is not None and not isinstance(value, Mapping | list | tuple):
                parts.setdefault(name, []).append(value)
    return {name: _one(values) for name, values in parts.items()}


def _one(values: list[Any]) -> Any:
    """Concatenate along the first dimension, the samples."""
    are_tensors = all(isinstance(value, Tensor) and value.dim() for value in values)
    if are_tensors and len({value.shape[1:] for value in values}) == 1:
        return torch.cat(values)
    return values


def write_predictions(path: Path, outputs: Mapping[str, Any]) -> None:
    """Write the file at once or not at all."""
    if not outputs:
        raise ConfigurationError(
            "no-outputs",
            "There is nothing to write: the data set is empty, or the model gives no outputs.",
        )
    content = SUFFIXES[path.suffix](outputs)
    with staged_file(path) as staging:
        write_bytes(staging, content)


def _safetensors(outputs: Mapping[str, Any]) -> bytes:
    tensors = _tensors(outputs, ".safetensors")
    return bytes(save({name: value.contiguous() for name, value in tensors.items()}))


def _npy(outputs: Mapping[str, Any]) -> bytes:
    tensors = _tensors(outputs, ".npy")
    if len(tensors) != 1:
        raise ConfigurationError(
            "several-outputs",
            f"The model has {len(tensors)} outputs ({', '.join(tensors)}): use .safetensors.",
        )
    (values,) = tensors.values()
    if values.dtype == torch.bfloat16:  # which numpy does not have
        values = values.float()
    file = BytesIO()
    np.save(file, values.resolve_conj().numpy(), allow_pickle=False)
    return file.getvalue()


def _json(outputs: Mapping[str, Any]) -> bytes:
    """One output as a list, several as a mapping of lists."""
    plain = {name: _listed(value) for name, value in outputs.items()}
    content = plain["output"] if list(plain) == ["output"] else plain
    return (json.dumps(as_json(content), allow_nan=False) + "\n").encode()


def _listed(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return [_listed(item) for item in value] if isinstance(value, list) else value


def _tensors(outputs: Mapping[str, Any], suffix: str) -> dict[str, Tensor]:
    for name, value in outputs.items():
        if not isinstance(value, Tensor):
            raise ConfigurationError(
                "output-format",
                f"The output {name!r} cannot be written as {suffix}: its batches are "
                f"{type(value[0]).__name__}s that do not form one tensor over all samples. Use "
                ".json.",
            )
    return {name: value.detach() for name, value in outputs.items()}


SUFFIXES: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
    ".safetensors": _safetensors,
    ".npy": _npy,
    ".json": _json,
}
