"""`loopwright export [RUN] --format safetensors|onnx|torch`: the model of a run in a format for
other programs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._torch_compat import tree_map
from ..checkpoint import load_weights, save_weights
from ..checkpoint.onnx import check_onnx_packages, export_module
from ..config import beside
from ..errors import ConfigurationError
from ..interfaces.configured.experiment import Experiment
from ..run.reading import Run
from ..text import size
from ..trainer import Trainer
from .output import FOUND, OK, check_output, say
from .selection import checkpoint_name, find_run, pick_checkpoint, require_config

SUFFIXES: dict[str, tuple[str, ...]] = {
    "safetensors": (".safetensors",),
    "torch": (".pt", ".pth", ".bin"),
    "onnx": (".onnx",),
}
BATCH_SIZE = 4


def export_command(options: argparse.Namespace) -> int:
    run = find_run(options.name, options.root)
    out = _destination(run, options)
    if options.format == "onnx":
        require_config(run)
    info = pick_checkpoint(run, options.checkpoint)

    weights = load_weights(info.path, model=options.model)
    source = checkpoint_name(run, info)
    if options.format == "onnx":
        return _export_onnx(run, weights, out, options, source)
    save_weights(out, weights, force=options.force)
    say(f"{len(weights)} tensors of {source}, written to {out} ({size(out.stat().st_size)}).")
    return OK


def _destination(run: Run, options: argparse.Namespace) -> Path:
    suffixes = SUFFIXES[options.format]
    plain = re.sub(r"[^\w.-]+", "-", run.name).strip("-.") or "model"
    out = Path(options.output or f"{plain}{suffixes[0]}")
    check_output(out, force=options.force, suffixes=suffixes)
    return out


def _export_onnx(
    run: Run, weights: Any, out: Path, options: argparse.Namespace, source: str
) -> int:
    check_onnx_packages()
    module, inputs = model_and_inputs(run, weights, options.model)
    report = export_module(module, inputs, out, opset=options.opset)
    sizes = (
        "any batch size"
        if report.is_dynamic
        else f"batches of {report.batch_size} only: {report.why_fixed}"
    )
    say(f"{source}, written to {out} ({size(report.size)}), for {sizes}.")
    verdict = "agree with" if report.is_close else "DIFFER from"
    sizes = f"{report.max_difference:.3g}, the largest output {report.largest:.3g}"
    print(f"Its outputs {verdict} those of torch: the largest difference is {sizes}.")
    return OK if report.is_close else FOUND


def model_and_inputs(
    run: Run, weights: Mapping[str, Tensor], name: str | None
) -> tuple[nn.Module, Any]:
    """The model with these weights, and inputs from the run's own data."""
    experiment = Experiment.from_run(run.path, progress="silent")
    experiment.build()
    assert experiment.trainer is not None
    trainer = experiment.trainer.engine
    trainer.setup()
    module = next(iter(trainer.models.values())) if name is None else trainer.models[name]
    module.load_state_dict(dict(weights))
    with beside(experiment.config.folder):
        return module, example_inputs(trainer, trainer.dataset("train"))


def example_inputs(trainer: Trainer, data: Any) -> Any:
    """The inputs of the model for the first few samples, on the CPU."""
    size = BATCH_SIZE if isinstance(data, torch.utils.data.Dataset) else None
    stream = trainer._open(data, size, shuffle=False)
    try:
        stream.begin(0)
        for batch, _, _ in stream.take(1):
            inputs, _ = trainer.split_batch(trainer.prepare_batch(batch))
            if isinstance(inputs, Mapping) and not inputs:
                raise ConfigurationError(
                    "unknown-inputs",
                    "trainer.forward_properties is empty, so the inputs of the model are not "
                    "known: name the keys of a batch that it takes, or override `_split_batch`.",
                )
            return tree_map(
                lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, inputs
            )
    finally:
        stream.close()
    raise ConfigurationError(
        "no-samples-to-try",
        "The training data of the run is empty, so there are no inputs to try the model with.",
    )
