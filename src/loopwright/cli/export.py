"""`loopwright export RUN --format safetensors|onnx|torch`: the model of a run in a format for other programs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..run.reading import CONFIG, RunView
from .arguments import RUN, add_command, add_root, find_run
from .exits import FOUND, OK
from .output import number_text, printable, size_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..checkpoint import CheckpointInfo
    from ..trainer import Trainer


MORE = """\
The weights come from the best kept model of the run, or from its newest resume point if it kept none; whatever is
taken is verified first. For ONNX the model itself is built from the run's config, and what the file computes is
compared with what torch computes, on samples of the run's own data, with two sizes of batch where it allows both.
Exit code 1: the ONNX file was written, but its outputs are not those of torch."""
EXAMPLE = """\
export last --format safetensors
export runs/digits --format onnx --checkpoint newest --output digits.onnx"""
SUFFIXES = {"safetensors": (".safetensors",), "torch": (".pt", ".pth", ".bin"), "onnx": (".onnx",)}
BATCH_SIZE = 4


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Export the model of a run."
    parser = add_command(parsers, common, "export", run=export_command, what=what, more=MORE, example=EXAMPLE)
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("--format", choices=tuple(SUFFIXES), default="safetensors", help="(default: safetensors)")
    parser.add_argument(
        "--checkpoint", metavar="WHICH", help="best, newest, the name of one, or the number of an update"
    )
    parser.add_argument("--model", metavar="NAME", help="which model, where the run trains several")
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write (default: the run's name, here)")
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")
    parser.add_argument("--opset", metavar="N", type=int, help="the version of ONNX's operators (default: torch's)")
    add_root(parser)


def export_command(options: argparse.Namespace) -> int:
    run = find_run(options.name, options.root)
    out = _destination(run, options)
    info = pick_checkpoint(run, options.checkpoint)
    from ..checkpoint import load_weights, save_weights

    weights = load_weights(info.path, model=options.model)
    metric = "" if info.metric is None else f", {info.metric[0]} {number_text(info.metric[1])}"
    source = f"{info.path.parent.name}/{info.name}{metric}"
    if options.format == "onnx":
        return _export_onnx(run, weights, out, options, source)
    save_weights(out, weights, force=options.force)
    print(printable(f"{len(weights)} tensors of {source} written to {out} ({size_text(out.stat().st_size)})."))
    return OK


def pick_checkpoint(run: RunView, which: str | None) -> CheckpointInfo:
    """Choose a checkpoint: the best kept model, the newest resume point, or one by name."""
    found = run.checkpoints()
    sound = [info for info in found if info.is_sound]
    kept = [info for info in sound if info.kind == "kept"]
    resume = [info for info in sound if info.kind == "resume"]
    if which == "best" or (which is None and kept):
        return _best(run)
    if which in (None, "newest"):
        if resume or kept:
            return (resume or kept)[-1]
        raise ConfigurationError(f"{run.path} holds no sound checkpoint yet; `loopwright checkpoint list` shows them.")
    return _named(run, found, str(which))


def _best(run: RunView) -> CheckpointInfo:
    from ..run.best import choose

    info = choose(run)
    if info is None:
        raise ConfigurationError(f"{run.path} kept no best model: use --checkpoint newest.")
    return info


def _named(run: RunView, found: list[CheckpointInfo], which: str) -> CheckpointInfo:
    name = f"update-{int(which):08d}" if which.isdecimal() else which
    fits = [info for info in found if name in (info.name, f"{info.path.parent.name}/{info.name}")]
    if not fits:
        names = ", ".join(f"{info.path.parent.name}/{info.name}" for info in found) or "none"
        raise ConfigurationError(f"{run.path} holds no checkpoint {which!r}; it holds: {names}.")
    return fits[-1]  # a resume point and a kept model of one update hold the same weights


def _destination(run: RunView, options: argparse.Namespace) -> Path:
    suffixes = SUFFIXES[options.format]
    plain = re.sub(r"[^\w.-]+", "-", run.name).strip("-.") or "model"
    out = Path(options.output or f"{plain}{suffixes[0]}")
    if out.suffix not in suffixes:
        raise ConfigurationError(
            f"--output {out}: a file of --format {options.format} ends in {' or '.join(suffixes)}."
        )
    if out.exists() and not options.force:
        raise ConfigurationError(f"{out} is there already: choose another --output, or pass --force to replace it.")
    if not out.absolute().parent.is_dir():
        raise ConfigurationError(f"--output {out}: there is no folder {out.parent}.")
    return out


def _export_onnx(run: RunView, weights: Any, out: Path, options: argparse.Namespace, source: str) -> int:
    from ..checkpoint.onnx import check_onnx_packages, export_module

    check_onnx_packages()
    module, inputs = model_and_inputs(run, weights, options.model)
    report = export_module(module, inputs, out, opset=options.opset)
    sizes = "any size of batch" if report.is_dynamic else f"batches of {report.batch_size} only: {report.why_fixed}"
    print(printable(f"{source} written to {out} ({size_text(report.size)}), for {sizes}."))
    verdict = "the same as" if report.is_close else "NOT the same as"
    print(
        f"Its outputs are {verdict} those of torch: max difference {report.max_difference:.3g}, of up to "
        f"{report.largest:.3g}."
    )
    return OK if report.is_close else FOUND


def model_and_inputs(run: RunView, weights: Mapping[str, Tensor], name: str | None) -> tuple[nn.Module, Any]:
    """The model with these weights, and inputs from the run's own data."""
    if run.config is None:
        raise ConfigurationError(
            f"{run.path} has no {CONFIG}, and weights alone do not say how they are computed with: the run was not "
            "started from a config. Build the model in Python, load the weights with "
            "loopwright.checkpoint.load_weights, and call torch.onnx.export."
        )
    from ..config import beside
    from ..doors.configured.experiment import Experiment

    experiment = Experiment.from_run(run.path, progress="silent")
    experiment.build()
    assert experiment.trainer is not None
    trainer = experiment.trainer.engine
    trainer.setup()
    module = _module(trainer.models, name)
    module.load_state_dict(dict(weights))
    with beside(experiment.config.folder):
        return module, example_inputs(trainer, trainer.dataset("train"))


def example_inputs(trainer: Trainer, data: Any) -> Any:
    """The inputs of the model for the first few samples, on the CPU."""
    import torch

    from .._torch_compat import tree_map

    size = BATCH_SIZE if isinstance(data, torch.utils.data.Dataset) else None
    stream = trainer._open(data, size, shuffle=False)
    try:
        stream.begin(0)
        for batch, _, _ in stream.take(1):
            inputs, _ = trainer.split_batch(trainer.prepare_batch(batch))
            if isinstance(inputs, Mapping) and not inputs:
                raise ConfigurationError(
                    "trainer.forward_properties is empty, so it is not known what the model is called with: name the "
                    "keys of a batch that it gets, or override `_split_batch`."
                )
            return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, inputs)
    finally:
        stream.close()
    raise ConfigurationError("The training data of the run is empty, so there is nothing to try the model on.")


def _module(models: Mapping[str, nn.Module], name: str | None) -> nn.Module:
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None or name not in models:
        raise ConfigurationError(f"The run trains the models {', '.join(models)}: say which with --model.")
    return models[name]
